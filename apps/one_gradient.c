/* Lesson 1, in numbers: the gradient of two weights, by td_backward and by hand.
 *
 * One sample: the number 2, of class 1. The model has one weight for each of the two classes.
 * docs/tutorial/1-wine-single.md goes through the numbers that this program prints. */
#include <tandem.h>

static void print_pair(const char *what, double first, double second)
{
    printf("%-14s %7.4f %7.4f\n", what, first, second);
}

static void print_tensor(const char *what, const td_tensor *t)
{
    double values[2];
    td_read(t, values, TD_F64);
    print_pair(what, values[0], values[1]);
}

/* Forward: weights, logits, probabilities, loss. */
static td_tensor *forward(td_tensor *x, td_tensor *label, td_tensor *w, double p[2])
{
    print_tensor("weights", w);
    td_tensor *logits = td_linear(x, w, NULL); /* x times each weight */
    print_tensor("logits", logits);
    td_tensor *probabilities = td_softmax(logits, 1);
    print_tensor("probabilities", probabilities);
    td_read(probabilities, p, TD_F64);
    td_tensor *loss = td_cross_entropy(logits, label);
    printf("%-14s %7.4f\n", "loss", td_item(loss));
    return loss;
}

int main(int argc, char **argv)
{
    static const td_option none[] = { { 0 } };
    td_read_options(argc, argv, "", none); /* --help, and no other option */
    td_tensor *x = td_from((float[]){ 2 }, TD_SHAPE(1, 1), TD_F32, TD_CPU);
    td_tensor *label = td_from((int64_t[]){ 1 }, TD_SHAPE(1), TD_I64, TD_CPU);
    td_tensor *w = td_from((float[]){ 0.5f, 0 }, TD_SHAPE(2, 1), TD_F32, TD_CPU);
    if (x == NULL || label == NULL || w == NULL) {
        td_die();
    }
    td_requires_grad(w, true);

    double p[2];
    TD_STEP {
        td_backward(forward(x, label, w, p));
        print_tensor("gradient", td_grad(w));
        print_pair("by hand", 2 * p[0], 2 * (p[1] - 1)); /* x times (p - 1 for the right class) */

        printf("after one step of SGD with learning rate 0.5:\n");
        td_no_grad_begin();
        td_add_(w, td_mul_scalar(td_grad(w), -0.5));
        forward(x, label, w, p);
        td_no_grad_end();
    }
    td_free(w);
    td_free(label);
    td_free(x);
    return td_finish();
}
