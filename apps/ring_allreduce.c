/* All-reduce, made by hand from sends and receives in two ways.
 *
 * Parameter server: everybody sends its vector to rank 0, which adds them up and sends the sum
 * back. Rank 0 has to carry (n-1) times the vector each way, so it gets slower with every rank.
 *
 * Ring: the vector is cut into n chunks. In each of n-1 rounds a rank sends one chunk to the right
 * and adds the one that comes from the left to its own; after them each rank holds one chunk of the
 * sum (reduce-scatter). In n-1 more rounds those travel around (all-gather). Each rank carries
 * 2(n-1)/n times the vector, however many there are.
 *
 * Bytes are counted at each send; td_all_reduce is there for comparison. */
#include "apps/common/cli.h"
#include "apps/common/progress.h"
#include "apps/common/ranks.h"
#include "dist/dist.h"
#include "dist/collectives.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_RANKS = 64 };

typedef struct bench {
    int64_t nprocs, kib, rounds;
    char url[64];

    int rank, size;
    int64_t count;            /* floats in the vector */
    float *values, *from;     /* [count] the vector; what has come */
    td_tensor *vector, *came; /* over them */
    td_tensor *chunk[MAX_RANKS], *came_chunk[MAX_RANKS];
    int64_t sent; /* bytes */
} bench;

static td_status put(bench *b, td_tensor *t, int to, td_work **work)
{
    b->sent += td_numel(t) * (int64_t)sizeof(float);
    return td_send(NULL, t, to, work);
}

static void add(float *sum, const float *more, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += more[i];
    }
}

/* ---- the two ways ---- */

static td_status parameter_server(bench *b)
{
    if (b->rank != 0) {
        TD_TRY(put(b, b->vector, 0, NULL));
        return td_recv(NULL, b->vector, 0, NULL);
    }
    for (int rank = 1; rank < b->size; rank++) {
        TD_TRY(td_recv(NULL, b->came, rank, NULL));
        add(b->values, b->from, b->count);
    }
    for (int rank = 1; rank < b->size; rank++) {
        TD_TRY(put(b, b->vector, rank, NULL));
    }
    return TD_OK;
}

/* One chunk to the right while another comes from the left. */
static td_status pass_on(bench *b, td_tensor *out, td_tensor *in)
{
    int right = (b->rank + 1) % b->size, left = (b->rank + b->size - 1) % b->size;
    td_work *sending, *receiving;
    TD_TRY(put(b, out, right, &sending));
    td_status received = td_recv(NULL, in, left, &receiving);
    if (received == TD_OK) {
        received = td_work_wait(receiving, 0);
    }
    td_status sent = td_work_wait(sending, 0);
    return received != TD_OK ? received : sent;
}

static int chunk_of(const bench *b, int i)
{
    return (i % b->size + b->size) % b->size;
}

static td_status ring(bench *b)
{
    for (int round = 0; round < b->size - 1; round++) {
        int out = chunk_of(b, b->rank - round), in = chunk_of(b, b->rank - round - 1);
        TD_TRY(pass_on(b, b->chunk[out], b->came_chunk[in]));
        add(td_data_rw(b->chunk[in]), td_data(b->came_chunk[in]), td_numel(b->chunk[in]));
    }
    for (int round = 0; round < b->size - 1; round++) {
        int out = chunk_of(b, b->rank + 1 - round), in = chunk_of(b, b->rank - round);
        TD_TRY(pass_on(b, b->chunk[out], b->chunk[in]));
    }
    return TD_OK;
}

static td_status library(bench *b)
{
    return td_all_reduce(NULL, b->vector, TD_SUM, NULL);
}

/* ---- counting and timing ---- */

static void fill(bench *b)
{
    for (int64_t i = 0; i < b->count; i++) {
        b->values[i] = (float)(b->rank + 1) + (float)(i % 7);
    }
}

/* Whole numbers, so the sum is exact in any order. */
static td_status check(const bench *b, const char *name)
{
    float ranks = (float)(b->size * (b->size + 1)) / 2.0f;
    for (int64_t i = 0; i < b->count; i++) {
        float want = ranks + (float)(b->size * (i % 7));
        if (b->values[i] != want) {
            return td_fail(TD_E_MISMATCH, "%s: element %" PRId64 " is %g, not %g", name, i,
                           (double)b->values[i], (double)want);
        }
    }
    return TD_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time until all are done. */
static td_status time_rounds(bench *b, const char *name, td_status (*way)(bench *), double *seconds)
{
    double *times = calloc((size_t)b->rounds, sizeof(double));
    td_status status =
        times != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory for %" PRId64 " times", b->rounds);
    for (int64_t i = 0; i < b->rounds && status == TD_OK; i++) {
        fill(b);
        b->sent = 0;
        status = td_barrier(NULL);
        double begin = seconds_now();
        status = status == TD_OK ? way(b) : status;
        status = status == TD_OK ? td_barrier(NULL) : status;
        times[i] = seconds_now() - begin;
        status = status == TD_OK ? check(b, name) : status;
    }
    if (status == TD_OK) {
        qsort(times, (size_t)b->rounds, sizeof(double), compare);
        *seconds = times[b->rounds / 2];
    }
    free(times);
    return status;
}

static td_status measure(bench *b, const char *name, td_status (*way)(bench *))
{
    double seconds, sent[MAX_RANKS] = { 0 };
    TD_TRY(time_rounds(b, name, way, &seconds));
    sent[b->rank] = (double)b->sent;
    TD_TRY(ranks_sum(sent, b->size));
    ranks_print("%-18s %9.3f ms  ", name, 1e3 * seconds);
    for (int rank = 0; rank < b->size && way != library; rank++) {
        ranks_print(" %9.0f", sent[rank] / 1024);
    }
    ranks_print("%s\n", way == library ? "         (as the backend does it)" : "");
    return TD_OK;
}

static td_status compare_ways(bench *b)
{
    ranks_print("all-reduce of %" PRId64 " KiB, %d ranks, %s, median of %" PRId64 "\n", b->kib,
                b->size, td_group_backend(td_dist_world()), b->rounds);
    ranks_print("%-18s %12s   KiB sent by rank 0, 1, ... (each receives as much)\n", "", "time");
    TD_TRY(measure(b, "parameter server", parameter_server));
    TD_TRY(measure(b, "ring", ring));
    return measure(b, "td_all_reduce", library);
}

/* ---- one process ---- */

static td_status make_tensors(bench *b)
{
    b->rank = td_dist_rank();
    b->size = td_dist_world_size();
    b->count = b->kib * 1024 / (int64_t)sizeof(float);
    b->values = calloc((size_t)b->count, sizeof(float));
    b->from = calloc((size_t)b->count, sizeof(float));
    if (b->values == NULL || b->from == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for two vectors of %" PRId64 " KiB", b->kib);
    }
    b->vector = td_borrow(b->values, TD_SHAPE(b->count), TD_F32, TD_CPU);
    b->came = td_borrow(b->from, TD_SHAPE(b->count), TD_F32, TD_CPU);
    for (int i = 0; i < b->size; i++) {
        int64_t begin = b->count * i / b->size, end = b->count * (i + 1) / b->size;
        b->chunk[i] = td_borrow(b->values + begin, TD_SHAPE(end - begin), TD_F32, TD_CPU);
        b->came_chunk[i] = td_borrow(b->from + begin, TD_SHAPE(end - begin), TD_F32, TD_CPU);
        if (b->chunk[i] == NULL || b->came_chunk[i] == NULL) {
            return TD_E_NOMEM;
        }
    }
    return b->vector != NULL && b->came != NULL ? TD_OK : TD_E_NOMEM;
}

static void free_tensors(bench *b)
{
    for (int i = 0; i < b->size; i++) {
        td_free(b->chunk[i]);
        td_free(b->came_chunk[i]);
    }
    td_free(b->vector);
    td_free(b->came);
    free(b->values);
    free(b->from);
}

static int rank_main(int rank, void *arg)
{
    bench *b = arg;
    td_status status =
        td_dist_init(.init_method = b->url, .rank = rank, .world_size = (int)b->nprocs);
    if (status == TD_OK) {
        status = make_tensors(b);
    }
    if (status == TD_OK) {
        status = compare_ways(b);
    }
    free_tensors(b);
    ranks_end(status);
    return status == TD_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    bench b = { .nprocs = 4, .kib = 16 << 10, .rounds = 5 };
    cli_option options[] = {
        { .name = "nprocs",
          .argument = "N",
          .help = "Processes to start",
          .kind = CLI_INT,
          .value = &b.nprocs,
          .low = 1,
          .high = MAX_RANKS },
        { .name = "kib",
          .argument = "N",
          .help = "Size of the vector in KiB",
          .kind = CLI_INT,
          .value = &b.kib,
          .low = 1,
          .high = 1 << 20 },
        { .name = "rounds",
          .argument = "N",
          .help = "How often each way is taken",
          .kind = CLI_INT,
          .value = &b.rounds,
          .low = 1,
          .high = 1e6 },
    };
    cli_parse(argc, argv, "All-reduce by parameter server and by ring: bytes and time.", options,
              (int)(sizeof(options) / sizeof(*options)));
    snprintf(b.url, sizeof(b.url), "tcp://127.0.0.1:%d", td_free_port());
    return td_spawn(rank_main, &b, (int)b.nprocs) == TD_OK ? 0 : app_failed("ring_allreduce");
}
