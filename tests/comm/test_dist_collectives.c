/* Every collective of the shm engine against a serial computation, bit for bit: 2, 3 and 4 ranks,
 * all dtypes and reductions, sizes of 0, 1, odd and large, in ordinary and in registered memory. */
#include "tensor/clock.h"
#include "dist/comm/engines/reduce_math.h"
#include "tensor/cpu/isa.h"
#include "tests/comm/dist_data.h"
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"
#include "dist/trace.h"
#include "dist/comm/collectives.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT = 120, TIMEOUT = 60 };
enum { FEWEST_RANKS = TD_SANITIZED ? 3 : 2, MOST_RANKS = TD_SANITIZED ? 3 : 4 };

/* Eager; one slice; several chunks of the staging areas, with a small rest. */
static const int64_t sizes[] = { 0, 1, 7, 1023, 40001, 140001 };
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* Where tensors lie: nowhere special, in registered memory, or so on rank 0 alone. */
typedef enum place { PLAIN, REGISTERED, MIXED, PLACES } place;

static td_tensor *make_tensor(int64_t n, td_dtype dtype, place where, int rank)
{
    td_tensor *t = where == PLAIN || (where == MIXED && rank > 0)
                       ? td_zeros(TD_SHAPE(n), dtype, TD_CPU)
                       : NULL;
    if (where != PLAIN) {
        td_tensor *registered = td_group_memory(NULL, n, dtype);
        REQUIRE(registered != NULL);
        if (t == NULL) {
            return registered;
        }
        td_free(registered);
    }
    REQUIRE(t != NULL);
    return t;
}

static void fill(td_tensor *t, const void *values, size_t bytes)
{
    memcpy(td_data_rw(t), values, bytes);
}

static bool holds(const td_tensor *t, int64_t from, const void *values, size_t bytes)
{
    return memcmp((const char *)td_data(t) + (size_t)from * td_dtype_size(t->dtype), values,
                  bytes) == 0;
}

/* Under sanitizers, which take their time, every third dtype of the large sizes. */
static int dtype_step(int s)
{
    return TD_SANITIZED && sizes[s] > 1023 ? 3 : 1;
}

/* The call is queued on half of the ranks, and blocks on the others. */
static td_work **queued(const dist_data *d, int rank, td_work **work)
{
    return (d->n + rank) % 2 != 0 ? work : NULL;
}

/* Of a call that may have been queued. */
static td_status ended(td_status status, td_work **work)
{
    td_work *under_way = *work;
    *work = NULL;
    return under_way != NULL ? td_work_wait(under_way, 0) : status;
}

/* ---- reductions ---- */

static void try_reductions(int rank, int size, td_dtype dtype, int64_t n, place where)
{
    dist_data d = dist_data_make(dtype, n, size, (uint64_t)(n + dtype));
    td_tensor *t = make_tensor(n, dtype, where, rank);
    td_work *work = NULL, **queue = queued(&d, rank, &work);
    for (td_reduction op = TD_SUM; op <= TD_PRODUCT; op++) {
        if (op == TD_AVERAGE && !td_is_float(dtype)) {
            continue;
        }
        dist_data_reduce(&d, op);
        fill(t, d.of[rank], dist_data_bytes(&d, n));
        REQUIRE_OK(td_all_reduce(NULL, t, op, NULL));
        REQUIRE(holds(t, 0, d.reduced, dist_data_bytes(&d, n)));
        int root = op % size;
        fill(t, d.of[rank], dist_data_bytes(&d, n));
        REQUIRE_OK(ended(td_reduce(NULL, t, op, root, queue), &work));
        REQUIRE(holds(t, 0, rank == root ? d.reduced : d.of[rank], dist_data_bytes(&d, n)));
    }
    td_free(t);
    dist_data_free(&d);
}

static int reductions(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, TIMEOUT);
    for (int s = 0; s < SIZES; s++) {
        for (td_dtype dtype = TD_F32; dtype < TD_DTYPE_COUNT; dtype += dtype_step(s)) {
            place last = sizes[s] > 1023 ? PLACES : REGISTERED;
            for (place where = PLAIN; where < last; where++) {
                try_reductions(rank, size, dtype, sizes[s], where);
            }
        }
    }
    td_dist_destroy();
    return 0;
}

static void test_reductions(void **state)
{
    (void)state;
    for (int size = FEWEST_RANKS; size <= MOST_RANKS; size++) {
        procs_succeed(size, LIMIT, reductions, NULL);
    }
}

/* Arrays that go in many pieces, the last of them short: it must not be taken for the one before.
 */
static int many_pieces(int rank, int size, void *arg)
{
    enum { N = 1200001, ROUNDS = 8 };
    (void)arg;
    procs_init(rank, size, TIMEOUT);
    dist_data d = dist_data_make(TD_F32, N, size, 5);
    dist_data_reduce(&d, TD_SUM);
    td_tensor *t = make_tensor(N, TD_F32, PLAIN, rank);
    for (int i = 0; i < ROUNDS; i++) {
        fill(t, d.of[rank], dist_data_bytes(&d, N));
        REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, NULL));
        REQUIRE(holds(t, 0, d.reduced, dist_data_bytes(&d, N)));
    }
    td_free(t);
    dist_data_free(&d);
    td_dist_destroy();
    return 0;
}

static void test_many_pieces(void **state)
{
    (void)state;
    procs_succeed(2, LIMIT, many_pieces, NULL);
    procs_succeed(MOST_RANKS, LIMIT, many_pieces, NULL);
}

/* ---- everything else ---- */

static void try_broadcast(const dist_data *d, int rank, place where)
{
    td_work *work = NULL, **queue = queued(d, rank, &work);
    for (int root = 0; root < d->size; root++) {
        td_tensor *t = make_tensor(d->n, d->dtype, where, rank);
        fill(t, d->of[rank], dist_data_bytes(d, d->n));
        REQUIRE_OK(ended(td_broadcast(NULL, t, root, queue), &work));
        REQUIRE(holds(t, 0, d->of[root], dist_data_bytes(d, d->n)));
        td_free(t);
    }
}

/* all_gather and gather, of n elements each. */
static void try_gathers(const dist_data *d, int rank, place where)
{
    td_work *work = NULL, **queue = queued(d, rank, &work);
    td_tensor *in = make_tensor(d->n, d->dtype, where, rank);
    td_tensor *out = make_tensor(d->n * d->size, d->dtype, where, rank);
    fill(in, d->of[rank], dist_data_bytes(d, d->n));
    REQUIRE_OK(ended(td_all_gather(NULL, out, in, queue), &work));
    for (int r = 0; r < d->size; r++) {
        REQUIRE(holds(out, r * d->n, d->of[r], dist_data_bytes(d, d->n)));
    }
    const int root = d->size - 1;
    td_fill_(out, 0);
    REQUIRE_OK(ended(td_gather(NULL, rank == root ? out : NULL, in, root, queue), &work));
    for (int r = 0; r < d->size && rank == root; r++) {
        REQUIRE(holds(out, r * d->n, d->of[r], dist_data_bytes(d, d->n)));
    }
    td_free(in);
    td_free(out);
}

/* scatter, all_to_all and reduce_scatter: the data is cut into one piece for every rank. */
static void try_scatters(dist_data *d, int rank, place where)
{
    td_work *work = NULL, **queue = queued(d, rank, &work);
    const int64_t piece = d->n / d->size, all = piece * d->size;
    const size_t bytes = dist_data_bytes(d, piece);
    td_tensor *in = make_tensor(all, d->dtype, where, rank);
    td_tensor *out = make_tensor(piece, d->dtype, where, rank);
    td_tensor *turned = make_tensor(all, d->dtype, where, rank);
    fill(in, d->of[rank], dist_data_bytes(d, all));
    REQUIRE_OK(ended(td_scatter(NULL, out, rank == 0 ? in : NULL, 0, queue), &work));
    REQUIRE(holds(out, 0, (char *)d->of[0] + (size_t)rank * bytes, bytes));
    REQUIRE_OK(ended(td_all_to_all(NULL, turned, in, queue), &work));
    REQUIRE_OK(ended(td_all_to_all(NULL, in, in, queue), &work)); /* in place */
    for (int r = 0; r < d->size; r++) {
        const char *sent = (char *)d->of[r] + (size_t)rank * bytes;
        REQUIRE(holds(turned, r * piece, sent, bytes));
        REQUIRE(holds(in, r * piece, sent, bytes));
    }
    fill(in, d->of[rank], dist_data_bytes(d, all));
    for (td_reduction op = TD_SUM; op <= TD_MAX; op++) {
        if (op == TD_AVERAGE && !td_is_float(d->dtype)) {
            continue;
        }
        dist_data_reduce(d, op);
        REQUIRE_OK(ended(td_reduce_scatter(NULL, out, in, op, queue), &work));
        REQUIRE(holds(out, 0, (char *)d->reduced + (size_t)rank * bytes, bytes));
    }
    td_free(in);
    td_free(out);
    td_free(turned);
}

static int moves(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, TIMEOUT);
    for (int s = 0; s < SIZES; s++) {
        for (td_dtype dtype = TD_F32; dtype < TD_DTYPE_COUNT; dtype += dtype_step(s)) {
            dist_data d = dist_data_make(dtype, sizes[s], size, (uint64_t)(100 + s + dtype));
            place last = sizes[s] > 1023 ? PLACES : REGISTERED;
            for (place where = PLAIN; where < last; where++) {
                try_broadcast(&d, rank, where);
                try_gathers(&d, rank, where);
                try_scatters(&d, rank, where);
            }
            dist_data_free(&d);
        }
        REQUIRE_OK(td_barrier(NULL));
    }
    td_dist_destroy();
    return 0;
}

static void test_moves(void **state)
{
    (void)state;
    for (int size = FEWEST_RANKS; size <= MOST_RANKS; size++) {
        procs_succeed(size, LIMIT, moves, NULL);
    }
}

/* More than areas and bits are usually made for. */
static int many_ranks(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, TIMEOUT);
    try_reductions(rank, size, TD_F32, 20011, PLAIN);
    try_reductions(rank, size, TD_BF16, 20011, REGISTERED);
    double numbers[2] = { rank, 1 };
    REQUIRE_OK(td_all_reduce_numbers(NULL, numbers, 2));
    REQUIRE(numbers[0] == size * (size - 1) / 2.0 && numbers[1] == size);
    td_dist_destroy();
    return 0;
}

static void test_sixteen_ranks(void **state)
{
    (void)state;
    procs_succeed(16, LIMIT, many_ranks, NULL);
}

/* ---- messages ---- */

/* Everybody sends to the next and receives from the one before, in either order. */
static void try_ring(int rank, int size, td_dtype dtype, int64_t n)
{
    dist_data d = dist_data_make(dtype, n, size, (uint64_t)n);
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    td_tensor *mine = make_tensor(n, dtype, PLAIN, rank), *theirs = td_clone(mine);
    td_work *work;
    fill(mine, d.of[rank], dist_data_bytes(&d, n));
    REQUIRE_OK(td_send(NULL, mine, to, &work)); /* the blocking call joins what is under way */
    REQUIRE_OK(td_recv(NULL, theirs, from, NULL));
    REQUIRE_OK(td_work_wait(work, 0));
    REQUIRE(holds(theirs, 0, d.of[from], dist_data_bytes(&d, n)));
    td_fill_(theirs, 0);
    REQUIRE_OK(td_recv(NULL, theirs, from, &work));
    REQUIRE_OK(td_send(NULL, mine, to, NULL));
    REQUIRE_OK(td_work_wait(work, 0));
    REQUIRE(holds(theirs, 0, d.of[from], dist_data_bytes(&d, n)));
    td_free(mine);
    td_free(theirs);
    dist_data_free(&d);
}

/* Many messages of one pair come in order, and small ones do not wait for their receiver. */
static void try_order(int rank, int size)
{
    enum { MESSAGES = 20 };
    td_tensor *t[MESSAGES];
    td_work *work[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        t[i] = td_full(TD_SHAPE(i * i * i), rank == 0 ? i : -1, TD_I32, TD_CPU);
        if (rank == 0) {
            REQUIRE_OK(td_send(NULL, t[i], size - 1, &work[i]));
        } else if (rank == size - 1) {
            REQUIRE_OK(td_recv(NULL, t[i], 0, &work[i]));
        }
    }
    for (int i = MESSAGES - 1; i >= 0; i--) {
        if (rank == 0 || rank == size - 1) {
            REQUIRE_OK(td_work_wait(work[i], 0));
            for (int64_t k = 0; k < td_numel(t[i]); k++) {
                REQUIRE(((const int32_t *)td_data(t[i]))[k] == i);
            }
        }
        td_free(t[i]);
    }
    td_tensor *one = td_full(TD_SHAPE(1), rank, TD_U8, TD_CPU);
    if (rank < 2) {
        REQUIRE_OK(td_send(NULL, one, 1 - rank, NULL)); /* both at once */
        REQUIRE_OK(td_recv(NULL, one, 1 - rank, NULL));
        REQUIRE(td_item(one) == 1 - rank);
    }
    td_free(one);
}

static int messages(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, TIMEOUT);
    for (int s = 0; s < SIZES; s++) {
        try_ring(rank, size, s % 2 == 0 ? TD_F32 : TD_U8, sizes[s]);
    }
    try_order(rank, size);
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void test_messages(void **state)
{
    (void)state;
    for (int size = FEWEST_RANKS; size <= MOST_RANKS; size++) {
        procs_succeed(size, LIMIT, messages, NULL);
    }
}

/* ---- several under way ---- */

static int outstanding(int rank, int size, void *arg)
{
    (void)arg;
    enum { WORKS = 200 }; /* more than handles are made at once */
    procs_init(rank, size, TIMEOUT);
    td_tensor *t[WORKS];
    td_work *work[WORKS];
    for (int i = 0; i < WORKS; i++) {
        t[i] = td_full(TD_SHAPE(1 + i * 37), rank + i, TD_F32, TD_CPU);
        REQUIRE_OK(td_all_reduce(NULL, t[i], TD_SUM, &work[i]));
    }
    double last = WORKS; /* a blocking call keeps its place in the queue */
    REQUIRE_OK(td_all_reduce_numbers(NULL, &last, 1));
    REQUIRE(last == WORKS * size);
    double before = 0;
    for (int i = 0; i < WORKS; i++) {
        double queued, begun, ended;
        REQUIRE(td_work_test(work[i]));
        td_work_times(work[i], &queued, &begun, &ended);
        REQUIRE(queued > 0 && queued <= begun && begun <= ended && ended <= td_clock());
        REQUIRE(begun >= before); /* one after the other */
        before = ended;
    }
    for (int i = WORKS - 1; i >= 0; i--) {
        REQUIRE_OK(td_work_wait(work[i], 1));
        for (int64_t k = 0; k < td_numel(t[i]); k++) {
            REQUIRE(((const float *)td_data(t[i]))[k] == size * (size - 1) / 2 + size * i);
        }
        td_free(t[i]);
    }
    td_dist_destroy();
    return 0;
}

static void test_outstanding(void **state)
{
    (void)state;
    procs_succeed(2, LIMIT, outstanding, NULL);
    procs_succeed(3, LIMIT, outstanding, NULL);
}

/* ---- soak: random sizes, dtypes, reductions and places ---- */

static int soak(int rank, int size, void *arg)
{
    const int rounds = *(const int *)arg;
    enum { UNDER_WAY = 4 };
    static const int64_t most[] = { 10, 3000, 60000, 250000 };
    procs_init(rank, size, TIMEOUT);
    for (int i = 0; i < rounds; i += UNDER_WAY) {
        dist_data d[UNDER_WAY];
        td_tensor *t[UNDER_WAY];
        td_work *work[UNDER_WAY];
        for (int k = 0; k < UNDER_WAY; k++) {
            uint64_t bits = dist_mix((uint64_t)(i + k + 12345));
            td_dtype dtype = (td_dtype)(bits % TD_DTYPE_COUNT);
            td_reduction op = (td_reduction)((bits >> 8) % (TD_PRODUCT + 1));
            op = op == TD_AVERAGE && !td_is_float(dtype) ? TD_SUM : op;
            int64_t n = (int64_t)((bits >> 20) % (uint64_t)most[(bits >> 16) % 4]);
            d[k] = dist_data_make(dtype, n, size, bits);
            dist_data_reduce(&d[k], op);
            t[k] = make_tensor(n, dtype, (place)((bits >> 12) % PLACES), rank);
            fill(t[k], d[k].of[rank], dist_data_bytes(&d[k], n));
            bool blocks = (bits >> 18) % 4 == 0;
            REQUIRE_OK(td_all_reduce(NULL, t[k], op, blocks ? NULL : &work[k]));
            work[k] = blocks ? NULL : work[k];
        }
        for (int k = 0; k < UNDER_WAY; k++) {
            REQUIRE(work[k] == NULL || td_work_wait(work[k], 0) == TD_OK);
            REQUIRE(holds(t[k], 0, d[k].reduced, dist_data_bytes(&d[k], d[k].n)));
            td_free(t[k]);
            dist_data_free(&d[k]);
        }
    }
    td_dist_destroy();
    return 0;
}

static void test_soak(void **state)
{
    (void)state;
    int rounds = getenv("TANDEM_LONG") != NULL ? 2000 : TD_SANITIZED ? 60 : 300;
    procs_succeed(2, 120, soak, &rounds);
    rounds /= 3;
    procs_succeed(3, 120, soak, &rounds);
}

/* ---- denormals ---- */

static int denormals(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, TIMEOUT);
    for (int64_t n = 5; n < 100000; n = n * 100 + 3) {
        td_tensor *t[2] = { td_zeros(TD_SHAPE(n), TD_F32, TD_CPU),
                            td_zeros(TD_SHAPE(n), TD_F32, TD_CPU) };
        for (int64_t i = 0; i < 2 * n; i++) {
            ((float *)td_data_rw(t[i % 2]))[i / 2] = 1e-40f;
        }
        td_work *work;
        REQUIRE_OK(td_all_reduce(NULL, t[0], TD_SUM, NULL));  /* on this thread */
        REQUIRE_OK(td_all_reduce(NULL, t[1], TD_SUM, &work)); /* on another */
        REQUIRE_OK(td_work_wait(work, 0));
        REQUIRE(memcmp(td_data(t[0]), td_data(t[1]), (size_t)n * sizeof(float)) == 0);
#if defined(__x86_64__)
        REQUIRE(((const float *)td_data(t[0]))[n - 1] == 0);
#endif
        td_free(t[0]);
        td_free(t[1]);
    }
    volatile float small = 1e-40f, half = 0.5f;
    REQUIRE(small * half != 0); /* the caller's own mode is as it was */
    td_dist_destroy();
    return 0;
}

static void test_denormals(void **state)
{
    (void)state;
    procs_succeed(2, LIMIT, denormals, NULL);
}

/* ---- the arithmetic itself ---- */

/* Every instruction set gives the same bits; NaN is passed on by min and max. */
static void test_arithmetic(void **state)
{
    (void)state;
    enum { N = 4099, TERMS = 5 };
    static char best[N * 8], portable[N * 8];
    for (td_dtype dtype = TD_F32; dtype < TD_DTYPE_COUNT; dtype++) {
        dist_data d = dist_data_make(dtype, N, TERMS, dtype);
        const void *in[TERMS];
        memcpy(in, d.of, sizeof in);
        for (td_reduction op = TD_SUM; op <= TD_PRODUCT; op++) {
            if (op == TD_AVERAGE && !td_is_float(dtype)) {
                continue;
            }
            td_reduce_arrays(&(void *){ best }, 1, in, TERMS, N, dtype, op);
            td_isa before = td_isa_current();
            td_isa_force(TD_ISA_PORTABLE);
            td_reduce_arrays(&(void *){ portable }, 1, in, TERMS, N, dtype, op);
            td_isa_force(before);
            assert_memory_equal(best, portable, dist_data_bytes(&d, N));
        }
        dist_data_free(&d);
    }
    float a[3] = { NAN, 1, 2 }, b[3] = { 1, NAN, 3 }, low[3], high[3];
    td_reduce_arrays(&(void *){ low }, 1, (const void *[]){ a, b }, 2, 3, TD_F32, TD_MIN);
    td_reduce_arrays(&(void *){ high }, 1, (const void *[]){ a, b }, 2, 3, TD_F32, TD_MAX);
    assert_true(isnan(low[0]) && isnan(low[1]) && low[2] == 2);
    assert_true(isnan(high[0]) && isnan(high[1]) && high[2] == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions),  cmocka_unit_test(test_many_pieces),
        cmocka_unit_test(test_moves),       cmocka_unit_test(test_messages),
        cmocka_unit_test(test_outstanding), cmocka_unit_test(test_soak),
        cmocka_unit_test(test_denormals),   cmocka_unit_test(test_sixteen_ranks),
        cmocka_unit_test(test_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
