/* All-reduce, made by hand from sends and receives in two ways: every rank has a vector, and in the
 * end every rank has the sum of all vectors.
 *
 * Parameter server: all send their vectors to rank 0, which adds them up and sends the sum back.
 * Rank 0 sends and receives (n-1) vectors, so it gets slower with every rank.
 *
 * Ring: the vector is cut into n chunks. In each of n-1 rounds a rank sends one chunk to its right
 * neighbour, and adds the chunk that comes from the left to its own (reduce-scatter). Then each
 * rank has one chunk of the sum. In n-1 more rounds the finished chunks travel around (all-gather).
 * Each rank sends 2(n-1)/n of a vector, for any number of ranks n.
 *
 * docs/tutorial/2a-group.md explains the ideas. */
#include <tandem.h>

#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 5 };

static int nprocs = 4, kib = 16384; /* the options */
static const td_option options[] = {
    { "RANKS", .number = &nprocs, .least = 1, .most = 64 },
    { "KIB", .number = &kib, .least = 1, .most = 1 << 20 },
    { 0 },
};

/* One rank's vector. */
typedef struct vector {
    float *values, *came; /* [count]; `came` is memory for what arrives */
    int64_t count, sent;  /* sent: bytes */
    bool trace;           /* print what the ranks have after each round of the ring */
} vector;

static void must(td_status status)
{
    if (status != TD_OK) {
        td_die();
    }
}

/* Where chunk i begins; `nprocs` chunks have `count` values. */
static int64_t begin_of(const vector *v, int i)
{
    return v->count * i / nprocs;
}

/* A tensor over chunks first to last of values. */
static td_tensor *chunks(const vector *v, float *values, int first, int last)
{
    int64_t begin = begin_of(v, first), end = begin_of(v, last + 1);
    td_tensor *t = td_borrow(values + begin, TD_SHAPE(end - begin), TD_F32, TD_CPU);
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

/* Adds what has arrived in these chunks. */
static void add(vector *v, int first, int last)
{
    for (int64_t i = begin_of(v, first); i < begin_of(v, last + 1); i++) {
        v->values[i] += v->came[i];
    }
}

static void parameter_server(vector *v)
{
    td_tensor *whole = chunks(v, v->values, 0, nprocs - 1);
    td_tensor *came = chunks(v, v->came, 0, nprocs - 1);
    if (td_dist_rank() == 0) {
        for (int rank = 1; rank < nprocs; rank++) {
            must(td_recv(NULL, came, rank, NULL));
            add(v, 0, nprocs - 1);
        }
        for (int rank = 1; rank < nprocs; rank++) {
            send_to(v, whole, rank, NULL);
        }
    } else {
        send_to(v, whole, 0, NULL);
        must(td_recv(NULL, whole, 0, NULL));
    }
    td_free(whole);
    td_free(came);
}

/* In a ring the last one's right neighbour is the first. */
static int around(int i)
{
    return (i + nprocs) % nprocs;
}

/* Sends chunk `out` to the right, while chunk `in` comes from the left. */
static void pass_on(vector *v, int out, int in, float *into)
{
    td_tensor *leaves = chunks(v, v->values, out, out), *comes = chunks(v, into, in, in);
    td_work *sending, *receiving; /* both are under way at the same time */
    send_to(v, leaves, around(td_dist_rank() + 1), &sending);
    must(td_recv(NULL, comes, around(td_dist_rank() - 1), &receiving));
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

static void ring(vector *v)
{
    for (int round = 0; round < 2 * (nprocs - 1); round++) {
        bool reducing = round < nprocs - 1; /* then the chunks are complete, and travel on */
        int out = around(td_dist_rank() - round % (nprocs - 1) + !reducing), in = around(out - 1);
        pass_on(v, out, in, reducing ? v->came : v->values);
        if (reducing) {
            add(v, in, in);
        }
        if (v->trace) {
            print_vectors(v, round + 1);
        }
    }
}

static void library(vector *v)
{
    td_tensor *whole = chunks(v, v->values, 0, nprocs - 1);
    must(td_all_reduce(NULL, whole, TD_SUM, NULL));
    td_free(whole);
}

/* Each value's sum over the ranks is checked. They are whole numbers, so sums are exact. */
static void fill_or_check(vector *v, const char *check)
{
    for (int64_t i = 0; i < v->count; i++) {
        float sum = (float)(nprocs * (nprocs + 1) / 2 + nprocs * (i % 7));
        if (check != NULL && v->values[i] != sum) {
            td_fail(TD_E_MISMATCH, "%s: element %d is %g, not %g", check, (int)i, v->values[i],
                    (double)sum);
            td_die();
        }
        v->values[i] = (float)(td_dist_rank() + 1 + i % 7);
    }
}

/* The shortest time until all ranks are done, and what each has sent. */
static void measure(vector *v, const char *name, void (*way)(vector *))
{
    double best = 1e9, sent[64] = { 0 };
    struct timespec begin, end;
    fill_or_check(v, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        v->sent = 0;
        must(td_barrier(NULL));
        clock_gettime(CLOCK_MONOTONIC, &begin);
        way(v);
        must(td_barrier(NULL));
        clock_gettime(CLOCK_MONOTONIC, &end);
        double ms = 1e3 * (double)(end.tv_sec - begin.tv_sec) +
                    1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
        best = ms < best ? ms : best;
        fill_or_check(v, name);
    }
    sent[td_dist_rank()] = (double)v->sent / 1024;
    must(td_all_reduce_numbers(NULL, sent, nprocs));
    td_printf_rank0("%-16s %9.3f ms ", name, best);
    for (int rank = 0; rank < nprocs && way != library; rank++) {
        td_printf_rank0(" %7.0f", sent[rank]);
    }
    td_printf_rank0("%s\n", way == library ? "       (as the backend does it)" : "");
}

/* Rank r begins with 10^r everywhere: the digits of a sum tell whose values are in it. */
static void show_ring(void)
{
    float values[8] = { 0 }, came[8] = { 0 };
    vector v = { .values = values, .came = came, .count = nprocs, .trace = true };
    for (int i = 0; i < nprocs; i++) {
        values[i] = td_dist_rank() == 0 ? 1 : 10;
        for (int power = 1; power < td_dist_rank(); power++) {
            values[i] *= 10;
        }
    }
    print_vectors(&v, 0);
    ring(&v);
}

static int run(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    must(td_dist_init());
    if (nprocs <= 5) {
        td_printf_rank0("The ring with %d numbers on each rank\n", nprocs);
        show_ring();
    }
    vector v = { .count = (int64_t)kib * 1024 / (int64_t)sizeof(float) };
    v.values = calloc((size_t)v.count, sizeof(float));
    v.came = calloc((size_t)v.count, sizeof(float));
    if (v.values == NULL || v.came == NULL) {
        td_fail(TD_E_NOMEM, "no memory for two vectors of %d KiB", kib);
        td_die();
    }
    td_printf_rank0("\nall-reduce of %d KiB, %d ranks, %s, best of %d\n", kib, nprocs,
                    td_group_backend(NULL), ROUNDS);
    td_printf_rank0("%-16s %12s  KiB sent by rank 0, 1, ...\n", "", "time");
    measure(&v, "parameter server", parameter_server);
    measure(&v, "ring", ring);
    measure(&v, "td_all_reduce", library);
    free(v.values);
    free(v.came);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, "[RANKS [KIB]]     (up to 64 ranks, 1048576 KiB)", options);
    must(td_spawn(run, NULL, nprocs));
    return 0;
}
