/* For test_apps_compare.sh: runs of two ranks, whose steps are hashed as --hash-every does; in each
 * run but the first two one bit is flipped somewhere.
 *
 * usage: worker_hashes FOLDER FLIPS STEPS CLEAN-STEPS
 *
 * FOLDER/clean and FOLDER/flip0, ... have STEPS steps, FOLDER/long0 and FOLDER/long1 have
 * CLEAN-STEPS each and no flip. FOLDER/flip0/expected gets the step, the rank, what and the name of
 * the first line that has to differ, between tabs. */
#include "apps/tools/common/hashes.h"
#include "dist/ddp/codec.h"
#include "nn/module.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, BATCH = 4, INPUTS = 6 };

/* Where the bit is: of a weight or a momentum before the step, of this rank's gradient before the
 * ranks' mean, or of the mean where it has arrived at one rank. */
typedef enum flip_kind { NO_FLIP, WEIGHT, MOMENTUM, OWN_GRADIENT, ARRIVED, KINDS } flip_kind;
typedef struct flip {
    flip_kind kind;
    int64_t step;
    int rank, param, bit;
    uint64_t element;
} flip;

typedef struct job {
    const char *folder;
    int flips;
    int64_t steps, clean_steps;
} job;

/* What the codec below asks, in each rank. */
static flip planned;
static int64_t running_step;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != TD_OK) {                                                                     \
            fprintf(stderr, "worker_hashes: %s: %s\n", #call, td_last_error());                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static bool flips_now(flip_kind kind)
{
    return planned.kind == kind && planned.step == running_step && planned.rank == td_dist_rank();
}

/* Flips a bit of elements [begin, begin + count) of a tensor: of the first number from the chosen
 * one on that a sum with its like does not swallow, if it has to count in one. */
static void flip_bit(td_tensor *t, int64_t begin, int64_t count, bool in_sum)
{
    td_tensor part = td_params_part(t, begin, count);
    float *values = td_data_rw(&part);
    int64_t at = (int64_t)(planned.element % (uint64_t)count);
    for (int64_t i = 0; in_sum && i < count && !(values[at] * values[at] > 1e-6f); i++) {
        at = (at + 1) % count;
    }
    uint32_t bits;
    memcpy(&bits, &values[at], sizeof bits);
    bits ^= UINT32_C(1) << planned.bit;
    memcpy(&values[at], &bits, sizeof bits);
}

/* ---- a codec that sends gradients as they are ---- */

static td_params *of_job;

static td_status plain_open(td_group *group, td_params *params, const td_ddp_options *options,
                            void **state)
{
    (void)group, (void)options;
    of_job = params;
    *state = NULL;
    return TD_OK;
}

static void plain_close(void *state)
{
    (void)state;
}

static td_status plain_attach(void *state, const td_bucket *b, void **part)
{
    (void)state, (void)b;
    *part = NULL;
    return TD_OK;
}

static void plain_detach(void *state, void *part)
{
    (void)state, (void)part;
}

static void flip_in_bucket(const td_bucket *b, bool in_sum)
{
    const td_param *p = td_params_get(of_job, planned.param);
    if (p->begin >= b->begin && p->begin < b->begin + b->count) {
        flip_bit(b->grad, p->begin - b->begin, p->count, in_sum);
    }
}

static td_status plain_encode(void *state, void *part, const td_bucket *b, int round, double scale,
                              td_wire *wire)
{
    (void)state, (void)part;
    if (round == 0) {
        if (flips_now(OWN_GRADIENT)) {
            flip_in_bucket(b, true);
        }
        td_mul_scalar_(b->grad, scale);
        *wire = (td_wire){ b->grad, true };
    }
    return TD_OK;
}

static td_status plain_decode(void *state, void *part, const td_bucket *b)
{
    (void)state, (void)part;
    if (flips_now(ARRIVED)) {
        flip_in_bucket(b, false);
    }
    return TD_OK;
}

static const td_bucket_codec plain = { .name = "plain",
                                       .open = plain_open,
                                       .close = plain_close,
                                       .attach = plain_attach,
                                       .detach = plain_detach,
                                       .encode = plain_encode,
                                       .decode = plain_decode };

/* ---- a run ---- */

static td_module *make_net(void)
{
    td_manual_seed(1);
    td_module *net = td_nn_sequential(td_nn_linear(INPUTS, 12), td_nn_batch_norm2d(12),
                                      td_nn_relu(), td_nn_dropout(0.25), td_nn_linear(12, 3));
    return td_ddp(net, .codec = &plain);
}

static void one_step(td_module *net, td_optim *optim, hashes *h, td_tensor *x, td_tensor *y)
{
    td_params *params = td_parameters(net);
    const td_param *p = td_params_get(params, planned.param);
    td_checkpoint_options state = { .path = "", .model = net, .optim = optim, .with_random = true };
    if (flips_now(WEIGHT)) {
        flip_bit(td_params_flat(params), p->begin, p->count, false);
    }
    if (flips_now(MOMENTUM)) {
        flip_bit(optim->state[0], p->begin, p->count, false);
    }
    TD_STEP {
        MUST(hashes_before(h, running_step, &state));
        td_zero_grad(optim);
        td_backward(td_cross_entropy(td_forward(net, x), y));
        MUST(hashes_gradients(h, params));
        td_optim_step(optim);
        MUST(hashes_after(h, &state));
    }
}

static void run(const char *folder, const char *name, int64_t steps, flip f)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/%s", folder, name);
    planned = f;
    hashes *h;
    td_module *net = make_net();
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.05, .momentum = 0.9);
    td_tensor *x = td_zeros(TD_SHAPE(BATCH, INPUTS), TD_F32, TD_CPU);
    td_tensor *y = td_zeros(TD_SHAPE(BATCH), TD_I64, TD_CPU);
    td_generator data;
    td_generator_seed(&data, 7 + (uint64_t)td_dist_rank());
    MUST(hashes_open(dir, 0, &h));
    for (running_step = 1; running_step <= steps; running_step++) {
        td_normal_(x, 0, 1, &data);
        for (int64_t i = 0; i < BATCH; i++) {
            td_set(y, &i, (double)((running_step + i) % 3));
        }
        one_step(net, optim, h, x, y);
    }
    hashes_close(h);
    if (td_dist_rank() == 0 && f.kind != NO_FLIP) {
        bool gradient = f.kind == OWN_GRADIENT || f.kind == ARRIVED;
        snprintf(dir, sizeof dir, "%s/%s/expected", folder, name);
        FILE *out = fopen(dir, "w");
        fprintf(out, "%" PRId64 "\t%d\t%s\t%s%s%s\n", f.step, f.kind == OWN_GRADIENT ? 0 : f.rank,
                gradient ? "gradient" : "before", f.kind == MOMENTUM ? "optimizer." : "",
                td_params_get(td_parameters(net), f.param)->name,
                f.kind == MOMENTUM ? ".momentum_buffer" : "");
        fclose(out);
    }
    td_free(x);
    td_free(y);
    td_optim_free(optim);
    td_module_free(net);
}

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static int rank_main(int local_rank, void *arg)
{
    (void)local_rank;
    const job *j = arg;
    MUST(td_dist_init(.timeout = 60));
    run(j->folder, "clean", j->steps, (flip){ .kind = NO_FLIP });
    run(j->folder, "long0", j->clean_steps, (flip){ .kind = NO_FLIP });
    run(j->folder, "long1", j->clean_steps, (flip){ .kind = NO_FLIP });
    uint64_t g = 42; /* the same on all ranks */
    for (int i = 0; i < j->flips; i++) {
        char name[32];
        flip f = { .kind = (flip_kind)(1 + i % (KINDS - 1)) };
        f.step = 1 + (int64_t)(draw(&g) % (uint64_t)j->steps);
        f.step = f.kind == MOMENTUM && f.step == 1 ? 2 : f.step; /* before there is none */
        f.rank = (int)(draw(&g) % RANKS);
        f.param = (int)(draw(&g) % 6);
        f.element = draw(&g);
        f.bit = (int)(draw(&g) % 32);
        f.bit = f.kind == OWN_GRADIENT ? 20 + f.bit % 12 : f.bit; /* not lost in the mean */
        snprintf(name, sizeof name, "flip%d", i);
        run(j->folder, name, j->steps, f);
    }
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        return 2;
    }
    job j = { argv[1], atoi(argv[2]), atoi(argv[3]), atoi(argv[4]) };
    MUST(td_spawn(rank_main, &j, RANKS));
    return 0;
}
