/* Lesson 11: ZeRO. Each process keeps only a part of the optimizer's state, the gradients and the
 * values of a model. The program trains one small model in all ways. For each way it prints the
 * bytes that a process keeps, next to the formula, and the bytes that come from other processes in
 * a step. The loss is the same in all ways, bit for bit.
 *
 * "gathered": each process keeps a part of the values, and gets the other parts before a block
 * runs, as between hosts. "parameters": the values are in memory that all processes of this host
 * read.
 *
 *   shard_memory                  starts two processes itself
 *   shard_memory 4                starts four
 *   shard_memory 2 parameters     what rank 0 has in the course of one step, with one setting
 *
 * docs/tutorial/11-shard.md explains the idea. */
#include <autograd/hooks.h>
#include <nn/around.h>
#include <nn/module.h>
#include <tandem.h>

#include <string.h>

enum { WIDTH = 256, BLOCKS = 12, ROWS = 64, STEPS = 5 };

enum { GATHERED = 3, IN_PLACE, WAYS }; /* the ways before are td_shard's */
static const char *const names[WAYS] = { "none", "optimizer", "gradients", "gathered",
                                         "parameters" };

/* A block makes its input four times as wide and narrow again. */
static td_module *make_block(void)
{
    return td_nn_sequential(td_nn_linear(WIDTH, 4 * WIDTH), td_nn_gelu(),
                            td_nn_linear(4 * WIDTH, WIDTH));
}

/* The first layer is in no block. */
static td_module *make_net(void)
{
    td_module *layers[1 + BLOCKS] = { td_nn_linear(WIDTH, WIDTH) };
    for (int i = 1; i <= BLOCKS; i++) {
        layers[i] = make_block();
    }
    return td_nn_sequential_list(layers, 1 + BLOCKS);
}

typedef struct result {
    int64_t parameters;
    td_shard_stats bytes;
    uint64_t wire; /* bytes from the other processes in the last step */
    double loss;
} result;

static double mib(double bytes)
{
    return bytes / 1048576.0;
}

/* ---- what a rank has at a moment of a step ---- */

typedef struct watched {
    td_module *net;
    int block;
} watched;

static void print_moment(const watched *w, const char *moment)
{
    td_shard_stats b = td_ddp_shard_stats(w->net);
    double values = (double)(b.values + b.unit_values), gradients = (double)b.gradients;
    gradients += (double)b.unit_gradients;
    td_printf_rank0("%-8s %6d %9.2f %10.2f %8.2f %8.2f\n", moment, w->block, mib(values),
                    mib(gradients), mib((double)b.state),
                    mib(values + gradients + (double)b.state));
}

/* Runs inside the function that td_ddp has put around a block: the block's values are here. */
static td_tensor *print_forward(const td_around_rest *rest, td_tensor *x, void *user)
{
    print_moment(user, "forward");
    return td_run_rest(rest, x);
}

/* The last gradient of a block is ready. */
static void print_backward(td_tensor *leaf, void *user)
{
    (void)leaf;
    print_moment(user, "backward");
}

static void watch(watched *w, td_module *net, int block)
{
    *w = (watched){ .net = net, .block = block };
    td_module *m = net->children[block];
    if (td_module_surround(m, &(td_around){ .run = print_forward, .user = w, .inside = true }) !=
            TD_OK ||
        td_on_grad_ready(m->children[0]->tensors[0].tensor, print_backward, w) < 0) {
        td_die();
    }
}

/* ---- training ---- */

/* Trains on random numbers; each rank has its own. moments: prints what rank 0 has in the course of
 * the last step. */
static result train(int way, bool moments)
{
    static watched blocks[1 + BLOCKS];
    td_manual_seed(1);
    td_shard shard = way < GATHERED ? (td_shard)way : TD_SHARD_PARAMETERS;
    td_module *net = td_ddp(make_net(), .strategy = td_zero(shard, .gathers = way == GATHERED));
    td_optim *optim = net != NULL ? td_adam(td_parameters(net), .lr = 1e-3) : NULL;
    td_tensor *x = td_new(TD_SHAPE(ROWS, WIDTH), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(ROWS, WIDTH), TD_F32, TD_CPU);
    if (optim == NULL || x == NULL || y == NULL) {
        td_die();
    }
    td_generator g;
    td_generator_seed(&g, 7 + (uint64_t)td_dist_rank());
    td_normal_(x, 0.0, 1.0, &g);
    td_normal_(y, 0.0, 1.0, &g);
    result r = { .parameters = 0 };
    for (int i = 0; i < STEPS; i++) {
        for (int k = 1; moments && i == STEPS - 1 && k <= BLOCKS; k++) {
            watch(&blocks[k], net, k);
        }
        uint64_t before = td_ddp_shard_stats(net).wire;
        TD_STEP {
            td_tensor *loss = td_mse_loss(td_forward(net, x), y);
            td_zero_grad(optim);
            td_backward(loss);
            td_optim_step(optim);
            r.loss = td_item(loss);
        }
        r.wire = td_ddp_shard_stats(net).wire - before;
    }
    r.parameters = td_parameter_count(net);
    r.bytes = td_ddp_shard_stats(net);
    r.loss = td_all_reduce_mean(r.loss);
    td_free(x);
    td_free(y);
    td_optim_free(optim);
    td_module_free(net);
    return r;
}

/* Rounds count up so that each of w processes has a whole number of pages of 4096 bytes. */
static double pad(double count, int w)
{
    int64_t pages = w * (4096 / 4);
    return (double)(((int64_t)count + pages - 1) / pages * pages);
}

/* Bytes of a process with Adam in f32 on w processes. docs/sharding.md explains the formulas. */
static double formula(int way, int w)
{
    double block = 8.0 * WIDTH * WIDTH + 5.0 * WIDTH; /* parameters of a block */
    double rest = WIDTH * WIDTH + WIDTH;              /* and in no block */
    block = way == IN_PLACE ? pad(block, w) : block;
    rest = way == IN_PLACE ? pad(rest, w) : rest;
    double n = BLOCKS * block + rest;
    switch (way) {
    case TD_SHARD_OPTIMIZER:
        return 8.0 * n + 8.0 * n / w;
    case TD_SHARD_GRADIENTS:
        return 4.0 * n + 12.0 * n / w + 8.0 * block + 4.0 * rest;
    case GATHERED:
        return 16.0 * n / w + 16.0 * block + 8.0 * rest;
    case IN_PLACE:
        return 16.0 * n / w + 8.0 * block + 4.0 * rest;
    default:
        return 16.0 * n;
    }
}

static void print_row(const char *name, const result *r, double bytes)
{
    td_shard_stats b = r->bytes;
    double parts[] = { (double)b.values, (double)b.gradients, (double)b.state, (double)b.slots };
    td_printf_rank0("%-10s %8.2f %10.2f %8.2f %8.2f %8.2f %8.2f %8.2f   %.9f\n", name,
                    mib(parts[0]), mib(parts[1]), mib(parts[2]), mib(parts[3]),
                    mib(parts[0] + parts[1] + parts[2] + parts[3]), mib(bytes),
                    mib((double)r->wire), r->loss);
}

static int run_one(int local_rank, void *arg)
{
    (void)local_rank;
    const int *way = arg;
    if (td_dist_init() != TD_OK) {
        td_die();
    }
    td_printf_rank0("step of %s: MiB of rank 0 of %d\n", names[*way], td_dist_world_size());
    td_printf_rank0("moment    block    values  gradients    state      all\n");
    train(*way, true);
    td_dist_destroy();
    return 0;
}

static int run(int local_rank, void *arg)
{
    (void)local_rank, (void)arg;
    if (td_dist_init() != TD_OK) {
        td_die();
    }
    int world = td_dist_world_size();
    double loss = 0.0;
    bool same = true;
    for (int way = TD_SHARD_NONE; way < WAYS; way++) {
        result r = train(way, false);
        if (way == TD_SHARD_NONE) {
            loss = r.loss;
            td_printf_rank0("%lld parameters, Adam, %d processes; MiB a process\n",
                            (long long)r.parameters, world);
            td_printf_rank0(
                "shard        values  gradients    state    slots      all  formula     wire   "
                "loss\n");
        }
        print_row(names[way], &r, formula(way, world));
        same = same && r.loss == loss;
    }
    td_dist_destroy();
    return same ? 0 : 1;
}

int main(int argc, char **argv)
{
    int processes = 2, way = TD_SHARD_NONE;
    const char *wanted = NULL;
    static const char usage[] = "[PROCESSES [none|optimizer|gradients|gathered|parameters]]"
                                "     (1 to 64 processes)";
    const td_option options[] = {
        { "PROCESSES", .number = &processes, .least = 1, .most = 64 },
        { "WAY", .text = &wanted },
        { 0 },
    };
    td_read_options(argc, argv, usage, options);
    while (wanted != NULL && way < WAYS && strcmp(wanted, names[way]) != 0) {
        way++;
    }
    if (way == WAYS) {
        td_refuse_options(usage, "there is no way '%s'", wanted);
    }
    if (td_spawn(wanted != NULL ? run_one : run, &way, processes) != TD_OK) {
        td_die();
    }
    return 0;
}
