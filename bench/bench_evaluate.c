/* Models without gradients, on random pictures: the memory of a step, the least time of eight.
 *
 * usage: bench_evaluate [THREADS [MODEL SIZE BATCH]]    without a model, those of docs/results.md
 */
#include "tandem.h"

#include "bench/peer.h"
#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"

enum { STEPS = 8 };

typedef struct evaluated {
    const char *model;
    int64_t size, batch;
} evaluated;

static const evaluated usual[] = {
    { "resnet50", 224, 16 },        { "resnet152", 224, 4 },     { "densenet121", 224, 16 },
    { "efficientnet_b0", 224, 16 }, { "regnet_y_16gf", 224, 2 }, { "resnet18", 32, 256 },
};

static int fail(void)
{
    fprintf(stderr, "bench_evaluate: %s\n", td_last_error());
    return 1;
}

/* Milliseconds of one step. */
static double evaluate(td_module *net, td_tensor *x)
{
    double begin = bench_now_ms();
    td_step_begin();
    td_no_grad_begin();
    td_forward(net, x);
    td_no_grad_end();
    td_step_end();
    return bench_now_ms() - begin;
}

static bool report(const evaluated *e)
{
    td_module *net = td_model(e->model, .image_size = e->size);
    if (net == NULL) {
        return false;
    }
    td_eval(net);
    td_tensor *x = td_new_layout(TD_SHAPE(e->batch, 3, e->size, e->size), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 0, 1, td_default_generator());
    double least = evaluate(net, x);
    for (int i = 1; i < STEPS; i++) {
        double ms = evaluate(net, x);
        least = ms < least ? ms : least;
    }
    printf("%s\t%dx%d\t%d\t%.1f\t%.1f\t%.1f\n", e->model, (int)e->size, (int)e->size, (int)e->batch,
           (double)td_step_memory(TD_CPU).peak / (1 << 20), least, (double)e->batch / least * 1e3);
    fflush(stdout);
    td_free(x);
    td_module_free(net);
    return true;
}

int main(int argc, char **argv)
{
    evaluated one = { .model = NULL };
    if (argc == 5) {
        one = (evaluated){ argv[2], strtol(argv[3], NULL, 10), strtol(argv[4], NULL, 10) };
    }
    if ((argc > 2 && argc != 5) || (one.model != NULL && (one.size < 1 || one.batch < 1))) {
        fprintf(stderr, "usage: bench_evaluate [THREADS [MODEL SIZE BATCH]]\n");
        return 2;
    }
    if (td_set_threads(TD_CPU, argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2) != TD_OK) {
        return fail();
    }
    printf("# %s, %d threads, fp32\n", td_kernels_of(TD_CPU)->name, td_threads(TD_CPU));
    printf("model\tpictures\tbatch\tMiB\tms\timages/s\n");
    const evaluated *list = one.model != NULL ? &one : usual;
    size_t count = one.model != NULL ? 1 : sizeof usual / sizeof *usual;
    for (size_t i = 0; i < count; i++) {
        if (!report(&list[i])) {
            return fail();
        }
    }
    return 0;
}
