/* All-reduce, made by hand from sends and receives in two ways: every rank has a vector, and in the
 * end every rank has the sum of all vectors.
 *
 * Parameter server: all send their vectors to rank 0, which adds them up and sends the sum back.
 * Rank 0 sends and receives (n-1) vectors, so it gets slower with every rank.
 *
 * Ring: the vector is cut into n chunks. In each of n-1 rounds a rank sends one chunk to its right
 * neighbour, and adds the chunk that comes from the left to its own (reduce-scatter). Then each
 * rank has one chunk of the sum. In n-1 more rounds the finished chunks travel around (all-gather).
 * Each rank sends 2(n-1)/n of a vector, however many ranks there are.
 *
 * docs/tutorial/2a-group.md explains the ideas. */
#include <tandem.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5 };

static int nprocs = 4, kib = 16384; /* the options */

/* One rank's vector. */
typedef struct vector {
    float *values;
    int64_t count;
    int64_t sent; /* bytes */
    bool trace;   /* whether the ring prints what it has after each round */
} vector;

static void must(td_status status)
{
    if (status != TD_OK) {
        td_die();
    }
}

/* A tensor over n of the vector's values. */
static td_tensor *tensor_of(float *values, int64_t n)
{
    td_tensor *t = td_borrow(values, TD_SHAPE(n), TD_F32, TD_CPU);
    if (t == NULL) {
        td_die();
    }
    return t;
}

static void send_to(vector *v, td_tensor *t, int rank, td_work **work)
{
    v->sent += td_numel(t) * (int64_t)sizeof(float);
    must(td_send(NULL, t, rank, work));
}

static void add(float *sum, const float *more, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += more[i];
    }
}

static void parameter_server(vector *v, float *came)
{
    td_tensor *whole = tensor_of(v->values, v->count), *other = tensor_of(came, v->count);
    if (td_dist_rank() > 0) {
        send_to(v, whole, 0, NULL);
        must(td_recv(NULL, whole, 0, NULL));
    }
    for (int rank = 1; rank < nprocs && td_dist_rank() == 0; rank++) {
        must(td_recv(NULL, other, rank, NULL));
        add(v->values, came, v->count);
    }
    for (int rank = 1; rank < nprocs && td_dist_rank() == 0; rank++) {
        send_to(v, whole, rank, NULL);
    }
    td_free(whole);
    td_free(other);
}

/* Where chunk i begins; i may be below 0: the ring has no end. */
static int64_t begin_of(const vector *v, int i)
{
    return v->count * i / nprocs;
}

static int chunk_at(int i)
{
    return (i + nprocs) % nprocs;
}

/* Sends chunk `out` to the right; chunk `in` comes from the left, into memory like the vector's. */
static void pass_on(vector *v, int out, int in, float *into)
{
    int rank = td_dist_rank(), right = chunk_at(rank + 1), left = chunk_at(rank - 1);
    td_tensor *leaves =
        tensor_of(v->values + begin_of(v, out), begin_of(v, out + 1) - begin_of(v, out));
    td_tensor *comes = tensor_of(into + begin_of(v, in), begin_of(v, in + 1) - begin_of(v, in));
    td_work *sending, *receiving; /* both are under way at the same time */
    send_to(v, leaves, right, &sending);
    must(td_recv(NULL, comes, left, &receiving));
    must(td_work_wait(receiving, 0));
    must(td_work_wait(sending, 0));
    td_free(leaves);
    td_free(comes);
}

/* The ranks print their vectors in turn. */
static void print_vectors(const vector *v, int round)
{
    td_printf_rank0("round %d\n", round);
    for (int rank = 0; rank < nprocs; rank++) {
        if (rank == td_dist_rank()) {
            printf("  rank %d:", rank);
            for (int64_t i = 0; i < v->count; i++) {
                printf(" %5.0f", v->values[i]);
            }
            printf("\n");
            fflush(stdout);
        }
        must(td_barrier(NULL));
    }
}

static void ring(vector *v, float *came)
{
    int rank = td_dist_rank();
    for (int round = 0; round < 2 * (nprocs - 1); round++) {
        bool reducing = round < nprocs - 1; /* then the chunks are finished, and travel on */
        int out = chunk_at(rank - round % (nprocs - 1) + !reducing), in = chunk_at(out - 1);
        pass_on(v, out, in, reducing ? came : v->values);
        if (reducing) {
            add(v->values + begin_of(v, in), came + begin_of(v, in),
                begin_of(v, in + 1) - begin_of(v, in));
        }
        if (v->trace) {
            print_vectors(v, round + 1);
        }
    }
}

static void library(vector *v, float *came)
{
    (void)came;
    td_tensor *whole = tensor_of(v->values, v->count);
    must(td_all_reduce(NULL, whole, TD_SUM, NULL));
    td_free(whole);
}

/* Whole numbers, so that the sum is exact in any order. */
static void fill(vector *v)
{
    for (int64_t i = 0; i < v->count; i++) {
        v->values[i] = (float)(td_dist_rank() + 1 + i % 7);
    }
}

static void check(const vector *v, const char *name)
{
    for (int64_t i = 0; i < v->count; i++) {
        double want = nprocs * (nprocs + 1) / 2 + nprocs * (double)(i % 7);
        if (v->values[i] != (float)want) {
            td_fail(TD_E_MISMATCH, "%s: element %d is %g, not %g", name, (int)i, v->values[i],
                    want);
            td_die();
        }
    }
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The shortest time until all ranks are done, and what each has sent. */
static void measure(vector *v, const char *name, void (*way)(vector *, float *), float *came)
{
    double best = 1e9, sent[64] = { 0 };
    for (int i = 0; i < ROUNDS; i++) {
        fill(v);
        v->sent = 0;
        must(td_barrier(NULL));
        double begin = seconds_now();
        way(v, came);
        must(td_barrier(NULL));
        double took = seconds_now() - begin;
        best = took < best ? took : best;
        check(v, name);
    }
    sent[td_dist_rank()] = (double)v->sent / 1024;
    must(td_all_reduce_numbers(NULL, sent, nprocs));
    td_printf_rank0("%-16s %9.3f ms ", name, 1e3 * best);
    for (int rank = 0; rank < nprocs && way != library; rank++) {
        td_printf_rank0(" %7.0f", sent[rank]);
    }
    td_printf_rank0("%s\n", way == library ? "       (as the backend does it)" : "");
}

/* Rank r begins with 10^r everywhere: the digits of a sum tell whose values are in it. */
static void show_ring(void)
{
    float values[8], came[8];
    vector v = { .values = values, .count = nprocs, .trace = true };
    for (int i = 0; i < nprocs; i++) {
        values[i] = td_dist_rank() == 0 ? 1 : 10;
        for (int power = 1; power < td_dist_rank(); power++) {
            values[i] *= 10;
        }
    }
    print_vectors(&v, 0);
    ring(&v, came);
}

static int run(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    must(td_dist_init(NULL));
    if (nprocs <= 5) {
        td_printf_rank0("The ring with %d numbers on each rank\n", nprocs);
        show_ring();
    }
    vector v = { .count = (int64_t)kib * 1024 / (int64_t)sizeof(float) };
    v.values = calloc((size_t)v.count, sizeof(float));
    float *came = calloc((size_t)v.count, sizeof(float));
    if (v.values == NULL || came == NULL) {
        td_fail(TD_E_NOMEM, "no memory for two vectors of %d KiB", kib);
        td_die();
    }
    td_printf_rank0("\nall-reduce of %d KiB, %d ranks, %s, best of %d\n", kib, nprocs,
                    td_group_backend(td_dist_world()), ROUNDS);
    td_printf_rank0("%-16s %12s  KiB sent by rank 0, 1, ...\n", "", "time");
    measure(&v, "parameter server", parameter_server, came);
    measure(&v, "ring", ring, came);
    measure(&v, "td_all_reduce", library, came);
    free(v.values);
    free(came);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    nprocs = argc > 1 ? atoi(argv[1]) : nprocs;
    kib = argc > 2 ? atoi(argv[2]) : kib;
    if (argc > 3 || nprocs < 1 || nprocs > 64 || kib < 1 || kib > 1 << 20) {
        fprintf(help ? stdout : stderr,
                "usage: ring_allreduce [RANKS [KIB]]     (up to 64 ranks, 1048576 KiB)\n");
        return help ? 0 : 64;
    }
    must(td_spawn(run, NULL, nprocs));
    return 0;
}
