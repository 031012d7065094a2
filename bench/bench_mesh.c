/* One training step of a model that several ranks hold together, each rank with one thread: a
 * pipeline, or tensor slices. Blocks of LayerNorm, Linear d -> 4d, GELU, Linear 4d -> d; a fixed
 * batch, cut into micro-batches; mean squared error; SGD.
 *
 *     bench_mesh HOW RANKS BLOCKS WIDTH ROWS MICRO
 *
 * HOW: `pieces` (one rank: the micro-batches one after the other), `split` (the same with
 * backward in two halves), a schedule of td_pipeline, or `slices:T` (T slices, whose sums are taken
 * in the order of a tree; 0: as many as ranks). ROWS: of a micro-batch. */
#include "autograd/hooks.h"
#include "bench/ranks.h"
#include "dist/pipeline/pipeline.h"
#include "dist/slices/slices.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/kernels/kernels.h"

typedef struct mesh_job {
    const char *how;
    int ranks, micro, commands;
    int64_t blocks, width, rows;
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y;
} mesh_job;

static td_module *make_blocks(const mesh_job *j)
{
    td_module **list = calloc((size_t)j->blocks, sizeof *list);
    for (int64_t i = 0; list != NULL && i < j->blocks; i++) {
        list[i] = td_nn_sequential(td_nn_layer_norm(j->width), td_nn_linear(j->width, 4 * j->width),
                                   td_nn_gelu(), td_nn_linear(4 * j->width, j->width));
    }
    td_module *net = list != NULL ? td_nn_sequential_list(list, (int)j->blocks) : NULL;
    free(list);
    return net;
}

/* user: a mesh_job. The loss that td_pipeline asks for: of one micro-batch. */
static td_tensor *loss_of(td_module *net, const td_batch *batch, td_tensor *sums[TD_SUMS],
                          void *user)
{
    (void)sums, (void)user;
    return td_mse_loss(td_forward(net, batch->x), batch->y);
}

static void pieces_step(mesh_job *j, bool split)
{
    for (int m = 0; m < j->micro; m++) {
        td_rest *rest = NULL;
        td_tensor *x = td_slice(j->x, 0, m * j->rows, (m + 1) * j->rows, 1);
        td_tensor *y = td_slice(j->y, 0, m * j->rows, (m + 1) * j->rows, 1);
        td_tensor *loss = td_mul_scalar(td_mse_loss(td_forward(j->net, x), y), 1.0 / j->micro);
        td_backward(loss, .rest = split ? &rest : NULL);
        if (split) {
            td_backward_rest(rest);
        }
    }
}

static void mesh_step(void *user)
{
    mesh_job *j = user;
    TD_STEP {
        td_zero_grad(j->optim);
        if (strcmp(j->how, "pieces") == 0 || strcmp(j->how, "split") == 0) {
            pieces_step(j, j->how[0] == 's');
        } else if (strncmp(j->how, "slices", 6) == 0) {
            td_backward(td_mse_loss(td_forward(j->net, j->x), j->y));
        } else if (td_pipeline_step(j->net, j->x, j->y, .measure = loss_of).status != TD_OK) {
            td_die();
        }
        td_optim_step(j->optim);
    }
}

/* Cuts the model as `how` says. */
static td_module *spread(mesh_job *j, td_module *net)
{
    static const td_tp_rule plan[] = { { "*.1", .style = TD_TP_COLUMN },
                                       { "*.3", .style = TD_TP_ROW } };
    int slices = 0;
    if (sscanf(j->how, "slices:%d", &slices) == 1) {
        return td_tensor_parallel(net, plan, 2, .slices = slices);
    }
    return strcmp(j->how, "pieces") == 0 || strcmp(j->how, "split") == 0
               ? net
               : td_pipeline(net, .schedule = j->how, .micro = j->micro);
}

static int run_rank(int local_rank, void *user)
{
    (void)local_rank;
    mesh_job *j = user;
    char facts[160];
    if (td_set_threads(TD_CPU, 1) != TD_OK || td_dist_init() != TD_OK) {
        td_die();
    }
    td_manual_seed(0);
    int64_t rows = j->micro * j->rows;
    j->net = spread(j, make_blocks(j));
    j->x = td_new(TD_SHAPE(rows, j->width), TD_F32, TD_CPU);
    j->y = td_new(TD_SHAPE(rows, j->width), TD_F32, TD_CPU);
    if (j->net == NULL || j->x == NULL || j->y == NULL) {
        td_die();
    }
    td_normal_(j->x, 0, 1, td_default_generator());
    td_normal_(j->y, 0, 1, td_default_generator());
    j->optim = td_sgd(td_parameters(j->net), .lr = 0.1);
    snprintf(facts, sizeof facts, "tandem %s, %s, %s, %d x 1 thread", TANDEM_VERSION,
             td_kernels_of(TD_CPU)->name, j->how, j->ranks);
    bench_serve_ranks(facts, j->commands, mesh_step, j);
    double bubble = 0;
    if (j->ranks > 1 && strncmp(j->how, "slices", 6) != 0 &&
        td_pipeline_picture(j->net, "/dev/null", &bubble) == TD_OK && td_dist_rank() == 0) {
        fprintf(stderr, "%s: bubble of the last step %.3f\n", j->how, bubble);
    }
    td_optim_free(j->optim);
    td_module_free(j->net);
    td_free(j->x);
    td_free(j->y);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: bench_mesh HOW RANKS BLOCKS WIDTH ROWS MICRO\n");
        return 64;
    }
    mesh_job j = { .how = argv[1],
                   .ranks = atoi(argv[2]),
                   .blocks = atoi(argv[3]),
                   .width = atoi(argv[4]),
                   .rows = atoi(argv[5]),
                   .micro = atoi(argv[6]),
                   .commands = dup(STDIN_FILENO) };
    if (td_spawn(run_rank, &j, j.ranks) != TD_OK) {
        td_die();
    }
    return 0;
}
