/* The process group, piece by piece: seven small cases, each of which every rank prints in its
 * turn.
 *
 *   group_basics                               two processes, started from here
 *   tdrun --nproc-per-node 2 group_basics      started by the launcher (the environment says who)
 *   group_basics --rank 0 --world-size 2 --init tcp://127.0.0.1:23456     by hand, and in another
 *   group_basics --rank 1 --world-size 2 --init tcp://127.0.0.1:23456     terminal: both wait */
#include "apps/common/cli.h"
#include "apps/common/ranks.h"
#include "dist/dist.h"
#include "dist/collectives.h"
#include "nn/module.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct basics {
    int64_t nprocs, rank, world_size;
    const char *init, *save;
} basics;

/* Rank after rank prints its line; the barriers between them keep the order. */
static td_status say_in_turn(const char *format, ...) __attribute__((format(printf, 1, 2)));

static td_status say_in_turn(const char *format, ...)
{
    for (int rank = 0; rank < td_dist_world_size(); rank++) {
        if (rank == td_dist_rank()) {
            va_list values;
            va_start(values, format);
            printf("  rank %d: ", rank);
            vprintf(format, values);
            printf("\n");
            va_end(values);
            fflush(stdout);
        }
        TD_TRY(td_barrier(NULL));
    }
    return TD_OK;
}

/* Whole numbers as "[1, 2]"; there are few of them. */
static const char *list_text(const double *values, int64_t count)
{
    static char text[1024];
    size_t used = 0;
    for (int64_t i = 0; i < count && used < sizeof(text) - 32; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.0f", i > 0 ? ", " : "[",
                                 values[i]);
    }
    snprintf(text + used, sizeof(text) - used, "]");
    return text;
}

static const char *tensor_text(const td_tensor *t)
{
    double values[128];
    int64_t count = td_numel(t);
    td_read(t, values, TD_F64);
    return list_text(values, count);
}

/* ---- 1, 4, 5: how they have met ---- */

static td_status show_group(const char *how)
{
    ranks_print("%s\n", how);
    return say_in_turn("of %d, local rank %d of %d, backend %s", td_dist_world_size(),
                       td_dist_local_rank(), td_dist_local_world_size(),
                       td_group_backend(td_dist_world()));
}

/* ---- 2: each rank's part of the data ---- */

enum { SAMPLES = 9 };

static td_status show_epoch(td_sampler *sampler, uint64_t epoch)
{
    int64_t index[2 * SAMPLES];
    double values[2 * SAMPLES];
    int64_t count = sampler->order(sampler, epoch, SAMPLES, index);
    if (count < 0) {
        return (td_status)count;
    }
    for (int64_t i = 0; i < count; i++) {
        values[i] = (double)index[i];
    }
    return say_in_turn("epoch %" PRIu64 " %s", epoch, list_text(values, count));
}

static td_status show_sampler(void)
{
    ranks_print(
        "2. the distributed sampler: 9 samples, each rank its part, padded to equal counts\n");
    td_sampler *sampler = td_distributed_sampler(.shuffle = true);
    if (sampler == NULL) {
        return TD_E_NOMEM;
    }
    td_status status = show_epoch(sampler, 0);
    if (status == TD_OK) {
        status = show_epoch(sampler, 1);
    }
    td_sampler_free(sampler);
    return status;
}

/* ---- 3: one saves, all load ---- */

static double sum_of_weights(td_module *net)
{
    double values[8], sum = 0;
    td_read(net->tensors[0].tensor, values, TD_F64);
    for (int i = 0; i < 8; i++) {
        sum += values[i];
    }
    return sum;
}

static td_status save_and_load(td_module *net, const char *path)
{
    td_checkpoint checkpoint = { .model = net };
    TD_TRY(say_in_turn("sum of its own weights: %.6f", sum_of_weights(net)));
    if (ranks_first()) {
        TD_TRY(td_checkpoint_save(path, &checkpoint));
        ranks_print("(rank: 0)   == Saved: %s\n", path);
    }
    TD_TRY(td_barrier(NULL)); /* nobody reads before it is written */
    TD_TRY(td_checkpoint_load(path, &checkpoint));
    TD_TRY(say_in_turn("== Loaded; sum of the weights: %.6f", sum_of_weights(net)));
    return TD_OK;
}

static td_status show_checkpoint(const char *path)
{
    ranks_print("3. rank 0 saves, a barrier, all load, each to its own device\n");
    td_manual_seed((uint64_t)td_dist_rank()); /* so that the weights differ at first */
    td_module *net = td_nn_linear(4, 2);
    if (net == NULL) {
        return TD_E_NOMEM;
    }
    td_status status = save_and_load(net, path);
    td_module_free(net);
    if (ranks_first()) {
        unlink(path);
    }
    return status;
}

/* ---- 6: collectives ---- */

static td_status exchange(td_tensor *mine, td_tensor *all)
{
    TD_TRY(say_in_turn("has %s", tensor_text(mine)));
    TD_TRY(td_all_gather(NULL, all, mine, NULL));
    TD_TRY(say_in_turn("all_gather     %s", tensor_text(all)));
    TD_TRY(td_all_reduce(NULL, mine, TD_SUM, NULL));
    return say_in_turn("all_reduce sum %s", tensor_text(mine));
}

static td_status show_collectives(void)
{
    ranks_print("6. collectives: rank r has [2r+1, 2r+2]\n");
    int rank = td_dist_rank();
    float values[] = { 2.0f * (float)rank + 1.0f, 2.0f * (float)rank + 2.0f };
    td_tensor *mine = td_from(values, TD_SHAPE(2), TD_F32, TD_CPU);
    td_tensor *all = td_new(TD_SHAPE(td_dist_world_size(), 2), TD_F32, TD_CPU);
    td_status status = mine != NULL && all != NULL ? exchange(mine, all) : TD_E_NOMEM;
    td_free(mine);
    td_free(all);
    return status;
}

/* ---- 7: scoring a test set once ---- */

/* What the others need of a rank: whether it was right about each of its samples. The "model" says
 * "even" for every sample. */
static td_status judge(td_sampler *sampler, td_tensor *right)
{
    int64_t index[2 * SAMPLES];
    int64_t count = sampler->order(sampler, 0, SAMPLES, index);
    for (int64_t i = 0; i < count; i++) {
        td_set(right, &i, index[i] % 2 == 0);
    }
    return count < 0 ? (td_status)count : TD_OK;
}

/* all[rank][i] is about sample i * ranks + rank; those beyond the last sample are padding. */
static td_status score(const td_tensor *all, int64_t each)
{
    int64_t ranks = td_dist_world_size(), padded = 0, once = 0;
    for (int64_t i = 0; i < each * ranks; i++) {
        int64_t place[] = { i % ranks, i / ranks };
        padded += td_get(all, place) != 0;
        once += i < SAMPLES && td_get(all, place) != 0;
    }
    TD_TRY(say_in_turn("all gathered    %s", tensor_text(all)));
    ranks_print("  with the padding %" PRId64 "/%" PRId64 ", each sample once %" PRId64 "/%d\n",
                padded, each * ranks, once, SAMPLES);
    return TD_OK;
}

static td_status gather_and_score(td_sampler *sampler, td_tensor *right, td_tensor *all)
{
    TD_TRY(judge(sampler, right));
    TD_TRY(say_in_turn("right about its samples: %s", tensor_text(right)));
    TD_TRY(td_all_gather(NULL, all, right, NULL));
    return score(all, td_numel(right));
}

static td_status show_evaluation(void)
{
    ranks_print(
        "7. evaluation: 9 samples, gathered from all ranks, without padding, scored once\n");
    td_sampler *sampler = td_distributed_sampler(); /* not shuffled */
    if (sampler == NULL) {
        return TD_E_NOMEM;
    }
    int64_t each = sampler->count(sampler, SAMPLES);
    td_tensor *right = td_new(TD_SHAPE(each), TD_U8, TD_CPU);
    td_tensor *all = td_new(TD_SHAPE(td_dist_world_size(), each), TD_U8, TD_CPU);
    td_status status =
        right != NULL && all != NULL ? gather_and_score(sampler, right, all) : TD_E_NOMEM;
    td_free(right);
    td_free(all);
    td_sampler_free(sampler);
    return status;
}

static td_status show_all(const basics *b, const char *how)
{
    TD_TRY(show_group(how));
    TD_TRY(show_sampler());
    TD_TRY(show_checkpoint(b->save));
    TD_TRY(show_collectives());
    return show_evaluation();
}

/* ---- starting ---- */

static td_status run_rank(const basics *b, const td_dist_options *where, const char *how)
{
    td_status status = td_dist_init_at(*where, TD_HERE); /* all wait for the last */
    if (status == TD_OK) {
        status = show_all(b, how);
    }
    ranks_end(status);
    return status;
}

static int spawned(int local_rank, void *arg)
{
    const basics *b = arg;
    td_dist_options where = { .init_method = b->init,
                              .rank = local_rank,
                              .world_size = (int)b->nprocs };
    return run_rank(b, &where, "4. spawned: this process has started the ranks") == TD_OK ? 0 : 1;
}

static td_status run(basics *b)
{
    char url[64];
    if (b->world_size > 0 && (b->init == NULL || b->rank >= b->world_size)) {
        return td_fail(TD_E_ARG,
                       "started by hand: give each its --rank, from 0 to %" PRId64
                       ", and all the same --init, as tcp://127.0.0.1:23456",
                       b->world_size - 1);
    }
    if (b->world_size > 0) {
        td_dist_options where = { .init_method = b->init,
                                  .rank = (int)b->rank,
                                  .world_size = (int)b->world_size };
        return run_rank(b, &where, "1. started by hand: the ranks have met at --init");
    }
    if (getenv("RANK") != NULL) {
        td_dist_options where = { .init_method = "env://" };
        return run_rank(b, &where, "5. launched: the environment says who is who");
    }
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", td_free_port());
    b->init = b->init != NULL ? b->init : url;
    return td_spawn(spawned, b, (int)b->nprocs);
}

int main(int argc, char **argv)
{
    basics b = { .nprocs = 2, .save = "group_basics.safetensors" };
    cli_option options[] = {
        { .name = "nprocs",
          .argument = "N",
          .help = "Processes to start",
          .kind = CLI_INT,
          .value = &b.nprocs,
          .low = 1,
          .high = 64 },
        { .name = "rank",
          .argument = "N",
          .help = "This process's rank, when started by hand",
          .kind = CLI_INT,
          .value = &b.rank,
          .high = 63 },
        { .name = "world-size",
          .argument = "N",
          .help = "How many are started by hand; 0: none, start --nprocs here",
          .kind = CLI_INT,
          .value = &b.world_size,
          .high = 64 },
        { .name = "init",
          .argument = "URL",
          .help = "Where they meet: tcp://HOST:PORT, file:///PATH, env://",
          .kind = CLI_TEXT,
          .value = &b.init },
        { .name = "save",
          .argument = "PATH",
          .help = "A file for the third case; removed again",
          .kind = CLI_TEXT,
          .value = &b.save },
    };
    cli_parse(argc, argv, "Shows what a process group does, in seven cases.", options,
              (int)(sizeof(options) / sizeof(*options)));
    return run(&b) == TD_OK ? 0 : app_failed("group_basics");
}
