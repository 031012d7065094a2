/* An MLP on a CSV file of numbers with one column of labels.
 *
 *     mlp_csv [FILE.csv [LABEL]]     LABEL: the label column's name; otherwise the last column
 *
 * Without arguments it makes a file of its own, rings.csv: points in a square, and in which of
 * three rings around the middle each point lies. */
#include <tandem.h>

#include <math.h>
#include <stdlib.h>

/* Writes 900 lines "x,y,ring". */
static void write_rings(const char *path)
{
    td_tensor *points = td_new(TD_SHAPE(900, 2), TD_F32, TD_CPU);
    FILE *out = fopen(path, "w");
    if (points == NULL || out == NULL) {
        perror(path);
        exit(1);
    }
    td_uniform_(points, -1, 1, td_default_generator());
    fprintf(out, "x,y,ring\n");
    for (int64_t i = 0; i < 900; i++) {
        double x = td_get(points, (int64_t[]){ i, 0 }), y = td_get(points, (int64_t[]){ i, 1 });
        double r = sqrt(x * x + y * y);
        fprintf(out, "%.4f,%.4f,%s\n", x, y, r < 0.5 ? "inner" : r < 0.8 ? "middle" : "outer");
    }
    fclose(out);
    printf("%s: 900 points, made here\n", path);
    td_free(points);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "rings.csv";
    td_manual_seed(0);
    if (argc == 1) {
        write_rings(path);
    }

    /* A fifth of the samples is for testing. Both parts are standardised by the training part. */
    td_dataset *all = td_csv_dataset(path, .label = argc > 2 ? argv[2] : NULL), *train, *test;
    if (td_split(all, 0.2, 42, &train, &test) != TD_OK ||
        td_standardize(train, test, NULL) != TD_OK) {
        td_die();
    }

    td_module *net =
        td_nn_sequential(td_nn_linear(train->sample_shape.dim[0], 32), td_nn_relu(),
                         td_nn_linear(32, 32), td_nn_relu(), td_nn_linear(32, train->classes));
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-2);
    td_loader *loader = td_loader_open(train, .batch_size = 32, .shuffle = true);
    td_loader *test_loader = td_loader_open(test, .batch_size = 256);
    if (optim == NULL || loader == NULL || test_loader == NULL) {
        td_die();
    }

    for (int epoch = 0; epoch < 40; epoch++) {
        double sum = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                sum += td_item(loss) * (double)batch.size;
            }
        }
        if (td_loader_status(loader) != TD_OK) {
            td_die();
        }
        if (epoch % 10 == 9) {
            printf("epoch %d: loss %.4f\n", epoch + 1, sum / (double)train->length);
        }
    }
    td_evaluation result = td_evaluate(net, test_loader);
    printf("test: %lld of %lld right, accuracy %.3f\n", (long long)result.right,
           (long long)result.seen, result.accuracy);

    /* Loaders before datasets, the optimizer before the model. */
    td_loader_close(loader);
    td_loader_close(test_loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(train);
    td_dataset_free(test);
    td_dataset_free(all);
    return result.status == TD_OK ? 0 : 1;
}
