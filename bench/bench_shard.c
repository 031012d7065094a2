/* What sharding costs and saves: time of a step, and proportional memory (Pss) of a rank, with each
 * way of td_zero; parameters are woven, and gathered. Blocks of LayerNorm, Linear d -> 4d,
 * GELU, Linear 4d -> d; Adam; each rank has one thread and its own rows. Each way has processes of
 * its own, and the ways take turns.
 *
 * usage: bench_shard [ranks] [blocks] [width] [rows] [turns] */
#include "bench/peer.h"
#include "nn/module.h"
#include "tandem.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 8, WARM = 2, GATHERED = TD_SHARD_PARAMETERS + 1, WAYS };

typedef struct task {
    int64_t blocks, width, rows;
    int way;          /* td_shard, or GATHERED: parameters that are not woven */
    const char *path; /* of the file that rank 0 tells the parent its outcome in */
} task;

typedef struct outcome {
    double ms, pss, counted; /* a step's least time; MiB of rank 0 */
} outcome;

/* MiB that this process has of the machine's memory: shared pages count by their shares. */
static double pss(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    double kib = 0.0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "Pss:", 4) == 0) {
            kib = strtod(line + 4, NULL);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib / 1024.0;
}

static td_module *make_net(const task *t)
{
    td_module **list = calloc((size_t)t->blocks, sizeof *list);
    for (int64_t i = 0; list != NULL && i < t->blocks; i++) {
        list[i] = td_nn_sequential(td_nn_layer_norm(t->width), td_nn_linear(t->width, 4 * t->width),
                                   td_nn_gelu(), td_nn_linear(4 * t->width, t->width));
    }
    td_module *net = list != NULL ? td_nn_sequential_list(list, (int)t->blocks) : NULL;
    free(list);
    return net;
}

static double mib(const td_shard_stats *s)
{
    return (double)(s->values + s->gradients + s->state + s->slots) / 1048576.0;
}

static int run(int local_rank, void *arg)
{
    (void)local_rank;
    const task *t = arg;
    if (td_dist_init() != TD_OK || td_barrier(NULL) != TD_OK) {
        td_die();
    }
    double before = pss();
    td_manual_seed(1);
    bool gathers = t->way == GATHERED;
    td_module *net =
        td_ddp(make_net(t), .strategy = td_zero(gathers ? TD_SHARD_PARAMETERS : (td_shard)t->way,
                                                .gathers = gathers));
    td_optim *optim = net != NULL ? td_adam(td_parameters(net), .lr = 1e-4) : NULL;
    td_tensor *x = td_new(TD_SHAPE(t->rows, t->width), TD_F32, TD_CPU);
    if (optim == NULL || x == NULL) {
        td_die();
    }
    td_normal_(x, 0.0, 1.0, td_default_generator());
    outcome o = { .ms = 1e9 };
    for (int i = 0; i < WARM + STEPS; i++) {
        if (td_barrier(NULL) != TD_OK) {
            td_die();
        }
        double begin = bench_now_ms();
        TD_STEP {
            td_tensor *loss = td_mse_loss(td_forward(net, x), x);
            td_zero_grad(optim);
            td_backward(loss);
            td_optim_step(optim);
        }
        double ms = bench_now_ms() - begin;
        o.ms = i >= WARM && ms < o.ms ? ms : o.ms;
    }
    td_shard_stats stats = td_ddp_shard_stats(net);
    o.pss = pss() - before;
    o.counted = mib(&stats);
    FILE *file = td_dist_rank() == 0 ? fopen(t->path, "w") : NULL;
    if (file != NULL) {
        fprintf(file, "%a %a %a\n", o.ms, o.pss, o.counted);
        fclose(file);
    }
    td_barrier(NULL);
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static outcome take(const task *t, int ranks)
{
    outcome o = { .ms = 0.0 };
    if (td_spawn(run, (void *)(uintptr_t)t, ranks) != TD_OK) {
        td_die();
    }
    FILE *file = fopen(t->path, "r");
    if (file == NULL || fscanf(file, "%la %la %la", &o.ms, &o.pss, &o.counted) != 3) {
        fprintf(stderr, "bench_shard: rank 0 has left no outcome\n");
        exit(1);
    }
    fclose(file);
    return o;
}

int main(int argc, char **argv)
{
    int64_t given[5] = { 2, 12, 512, 128, 3 };
    for (int i = 1; i < argc && i <= 5; i++) {
        given[i - 1] = strtol(argv[i], NULL, 10);
    }
    if (argc > 6 || given[0] < 1 || given[1] < 1 || given[2] < 1 || given[3] < 1 || given[4] < 1) {
        fprintf(stderr, "usage: bench_shard [ranks] [blocks] [width] [rows] [turns]\n");
        return 64;
    }
    static const char *const names[WAYS] = { "none", "optimizer", "gradients", "parameters",
                                             "gathered" };
    char path[] = "/tmp/bench_shard_XXXXXX";
    int file = mkstemp(path);
    if (file < 0) {
        perror("bench_shard: /tmp");
        return 1;
    }
    close(file);
    setenv("OMP_NUM_THREADS", "1", 1);
    task t = { .blocks = given[1], .width = given[2], .rows = given[3], .path = path };
    outcome best[WAYS] = { { .ms = 0.0 } };
    for (int64_t turn = 0; turn < given[4]; turn++) {
        for (int way = 0; way < WAYS; way++) {
            t.way = way;
            outcome o = take(&t, (int)given[0]);
            best[way].ms = turn == 0 || o.ms < best[way].ms ? o.ms : best[way].ms;
            best[way].pss = o.pss;
            best[way].counted = o.counted;
        }
    }
    remove(path);
    printf("%lld ranks of one thread, %lld blocks of %lld, %lld rows each, Adam\n",
           (long long)given[0], (long long)given[1], (long long)given[2], (long long)given[3]);
    printf("shard       ms a step  of none   MiB counted   MiB Pss\n");
    for (int way = 0; way < WAYS; way++) {
        printf("%-10s %10.1f %8.3f %13.1f %9.1f\n", names[way], best[way].ms,
               best[way].ms / best[0].ms, best[way].counted, best[way].pss);
    }
    return 0;
}
