/* Lesson 2, in numbers: two ranks, one sample each, and the mean of their gradients.
 *
 * The model is that of one_gradient: one weight for each of two classes.
 * docs/tutorial/2-wine-ddp-spawn.md goes through the numbers that this program prints. */
#include <autograd/hooks.h>
#include <tandem.h>

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

/* Prints two numbers of each rank, side by side. All ranks call it. */
static void show(const char *what, td_tensor *mine)
{
    td_tensor *all = td_new(TD_SHAPE(2, 2), TD_F32, TD_CPU);
    double v[4];
    must(all != NULL && td_all_gather(NULL, all, mine, NULL) == TD_OK);
    td_read(all, v, TD_F64);
    td_printf_rank0("%-10s %8.4f %8.4f %10.4f %8.4f\n", what, v[0], v[1], v[2], v[3]);
    td_free(all);
}

/* The gradient of the mean loss of some samples. */
static void compute_gradient(td_tensor *w, const float *x, const int64_t *label, int samples)
{
    td_tensor *inputs = td_from(x, TD_SHAPE(samples, 1), TD_F32, TD_CPU);
    td_tensor *labels = td_from(label, TD_SHAPE(samples), TD_I64, TD_CPU);
    must(inputs != NULL && labels != NULL);
    td_zero_grad_of(w);
    TD_STEP {
        td_backward(td_cross_entropy(td_linear(inputs, w, NULL), labels));
    }
    td_free(labels);
    td_free(inputs);
}

static int train(int rank, void *unused)
{
    static const float x[] = { 2, 1 }; /* sample r is rank r's */
    static const int64_t label[] = { 1, 0 };
    (void)unused;
    must(td_dist_init() == TD_OK);
    td_tensor *w = td_from((float[]){ 0.5f, 0 }, TD_SHAPE(2, 1), TD_F32, TD_CPU);
    td_tensor *sample = td_from((float[]){ x[rank], (float)label[rank] }, TD_SHAPE(2), TD_F32,
                                TD_CPU); /* to be printed */
    must(w != NULL && sample != NULL);
    td_requires_grad(w, true);

    td_printf_rank0("%24s %19s\n", "rank 0", "rank 1");
    show("x, label", sample);
    show("weights", w);
    compute_gradient(w, x + rank, label + rank, 1);
    show("gradient", td_grad(w));
    must(td_all_reduce(NULL, td_grad(w), TD_AVERAGE, NULL) == TD_OK); /* what td_ddp adds */
    show("mean", td_grad(w));
    TD_STEP {
        td_no_grad_begin();
        td_add_(w, td_mul_scalar(td_grad(w), -0.5)); /* SGD with learning rate 0.5 */
        td_no_grad_end();
    }
    show("weights", w);

    td_write(w, (float[]){ 0.5f, 0 }, TD_F32);
    compute_gradient(w, x, label, 2);
    td_printf_rank0("one process, both samples:\n");
    show("gradient", td_grad(w));
    td_free(sample);
    td_free(w);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    static const td_option none[] = { { 0 } };
    td_read_options(argc, argv, "", none); /* --help, and no other option */
    must(td_spawn(train, NULL, 2) == TD_OK);
    return 0;
}
