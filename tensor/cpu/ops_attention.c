/* Attention without a matrix of all scores: tiles of 64 keys by 64 queries, as in FlashAttention
 * (Dao et al. 2022).
 *
 *     forward    s = K Q^T      p = exp(s)         o += p^T V
 *     backward   s = K Q^T      g = V dO^T         dV += p dO     dK += ds Q     dQ += ds^T K
 *
 * The tiles cut every sum: keys ascend for o and dQ; queries, and heads that share keys, ascend for
 * dK and dV. Tiles of keys begin at multiples of 64, wherever the first query is. So a row has the
 * same bits with any number of rows before it in its call. */
#include "tensor/cpu/attention_tiles.h"
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/ops.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* A tensor [B,T,H,h] whose rows of h elements are dense. */
typedef struct head_rows {
    char *at;
    int64_t batch, token, head; /* bytes */
    int64_t rows[TD_TILE];      /* where 64 tokens lie */
} head_rows;

typedef struct attention_job {
    td_tiles tiles;
    int64_t queries, keys, heads; /* T, S, H */
    int64_t group;                /* heads of q that share one of k and v */
    int64_t past;                 /* query t reads keys up to past + t; -1: all */
    double scale;
    head_rows q, k, v, y, dy, dq, dk, dv;
    char *lse;          /* [B,H,T] */
    bool accumulate[3]; /* to dq, dk, dv */
} attention_job;

static head_rows attention_rows_of(char *at, int64_t batch, int64_t token, int64_t head)
{
    head_rows x = { at, batch, token, head, { 0 } };
    for (int64_t i = 0; i < TD_TILE; i++) {
        x.rows[i] = i * token;
    }
    return x;
}

static char *row_at(const head_rows *x, int64_t batch, int64_t head, int64_t token)
{
    return x->at + batch * x->batch + head * x->head + token * x->token;
}

static td_dtype attention_sums_dtype(const attention_job *job)
{
    return job->tiles.dtype == TD_F64 ? TD_F64 : TD_F32;
}

/* What is computed of the tile of keys from k0 on and queries from q0 on. */
static td_tile_part part_at(const attention_job *job, int64_t k0, int64_t q0)
{
    td_tile_part part = { .keys = td_min64(TD_TILE, job->keys - k0),
                          .queries = td_min64(TD_TILE, job->queries - q0),
                          .shift = TD_TILE };
    if (job->past >= 0) {
        part.shift = td_min64(TD_TILE, job->past + q0 - k0);
    }
    return part;
}

static td_attention_tile tile_of(const attention_job *job, char *scores, td_tile_part part)
{
    return (td_attention_tile){
        .keys = part.keys,
        .lanes = td_divide_up(part.queries, TD_ATTENTION_LANES) * TD_ATTENTION_LANES,
        .shift = part.shift,
        .scores = scores,
        .scale = job->scale,
    };
}

/* ---- forward ---- */

typedef struct forward_memory {
    td_left k;
    td_right v;
    char *turned, *scores, *room, *sums;
    char *top, *sum, *factor, *lse; /* of 64 queries */
} forward_memory;

static void forward_begin(const attention_job *job, forward_memory *m, int64_t batch, int64_t head,
                          td_conv_space *space)
{
    const td_tiles *t = &job->tiles;
    m->k = td_tiles_left(t, row_at(&job->k, batch, head, 0), job->k.rows, job->keys, space);
    m->v = td_tiles_right(t, row_at(&job->v, batch, head, 0), job->v.token, job->keys, space);
    m->turned = td_conv_take(space, td_tiles_turned_bytes(t));
    m->scores = td_conv_take(space, TD_TILE * TD_TILE * t->sum);
    m->room = td_conv_take(space, TD_TILE * TD_TILE * t->size);
    m->sums = td_conv_take(space, TD_TILE * t->width * t->sum);
    m->top = td_conv_take(space, TD_TILE * t->sum);
    m->sum = td_conv_take(space, TD_TILE * t->sum);
    m->factor = td_conv_take(space, TD_TILE * t->sum);
    m->lse = td_conv_take(space, TD_TILE * t->sum);
}

/* The rows of 64 queries of a head. */
static void forward_tile(const attention_job *job, const forward_memory *m, int64_t batch,
                         int64_t head, int64_t q0)
{
    const td_tiles *t = &job->tiles;
    td_sink sums = { m->sums, t->of_sums };
    td_attention_tile tile;
    int64_t queries = td_min64(TD_TILE, job->queries - q0);
    int64_t end = job->past >= 0 ? job->past + q0 + queries : job->keys;
    td_tiles_turn(t, m->turned, row_at(&job->q, batch, head, q0), job->q.token, queries);
    for (int64_t k0 = 0; k0 < end; k0 += TD_TILE) {
        td_tile_part part = part_at(job, k0, q0);
        part.keys = td_min64(part.keys, end - k0);
        td_tiles_scores(t, m->scores, td_left_from(m->k, k0), td_right_turned(t, m->turned), part);
        tile = tile_of(job, m->scores, part);
        tile.first = k0 == 0;
        tile.top = m->top;
        tile.sum = m->sum;
        tile.factor = m->factor;
        t->loops->transformer.tile(&tile);
        if (k0 > 0) {
            t->loops->transformer.scale_rows(queries, t->width, m->sums, m->factor);
        }
        td_left p = td_tiles_by_queries(t, m->scores, m->room, part);
        td_tiles_sum_keys(t, sums, p, td_right_from(t, m->v, k0), part, k0 > 0);
    }
    t->loops->transformer.end(&tile, m->lse);
    t->loops->transformer.scale_rows(queries, t->width, m->sums, m->factor);
    for (int64_t i = 0; i < queries; i++) {
        td_tiles_put(t, row_at(&job->y, batch, head, q0 + i), m->sums + t->of_sums[i], false);
    }
    memcpy(job->lse + ((batch * job->heads + head) * job->queries + q0) * t->sum, m->lse,
           (size_t)(queries * t->sum));
}

/* Every so many tiles of queries of a head: `parts` items a head. */
static void forward_item(const attention_job *job, int64_t item, int64_t parts, char *scratch)
{
    td_conv_space space = { .base = scratch };
    int64_t batch = item / parts / job->heads, head = item / parts % job->heads;
    forward_memory m;
    forward_begin(job, &m, batch, head / job->group, &space);
    for (int64_t q0 = item % parts * TD_TILE; q0 < job->queries; q0 += parts * TD_TILE) {
        forward_tile(job, &m, batch, head, q0);
    }
}

/* ---- backward ---- */

typedef struct backward_memory {
    /* of a head of keys */
    td_left k, v;
    td_right k_right;
    char *scores, *grads, *room;
    const head_rows *dq, *dk, *dv; /* where sums are made: in place, or, of bf16, in f32: */
    head_rows sums[3];
    /* of a head of queries; turned: for each tile */
    td_right q, dy;
    char *q_turned, *dy_turned;
    char *lse, *dots;
} backward_memory;

static void backward_begin(const attention_job *job, backward_memory *m, int64_t batch,
                           int64_t head, td_conv_space *space)
{
    const td_tiles *t = &job->tiles;
    char *k = row_at(&job->k, batch, head, 0), *v = row_at(&job->v, batch, head, 0);
    m->k = td_tiles_left(t, k, job->k.rows, job->keys, space);
    m->v = td_tiles_left(t, v, job->v.rows, job->keys, space);
    m->k_right = td_tiles_right(t, k, job->k.token, job->keys, space);
    m->scores = td_conv_take(space, TD_TILE * TD_TILE * t->sum);
    m->grads = td_conv_take(space, TD_TILE * TD_TILE * t->sum);
    m->room = td_conv_take(space, TD_TILE * TD_TILE * t->size);
    m->dq = &job->dq;
    m->dk = &job->dk;
    m->dv = &job->dv;
    if (t->dtype == TD_BF16) {
        const head_rows **of[3] = { &m->dq, &m->dk, &m->dv };
        for (int i = 0; i < 3; i++) {
            int64_t rows = i == 0 ? job->queries : job->keys, row = t->width * t->sum;
            m->sums[i] = attention_rows_of(td_conv_take(space, rows * row), 0, row, 0);
            *of[i] = &m->sums[i];
        }
    }
}

/* dots[t] = the sum of dy * y over a row. */
static void row_dots(const attention_job *job, const backward_memory *m, int64_t batch,
                     int64_t head)
{
    const td_tiles *t = &job->tiles;
    const td_loops *bf16 = td_loops_of(TD_BF16);
    for (int64_t i = 0; i < job->queries; i++) {
        const void *dy = row_at(&job->dy, batch, head, i), *y = row_at(&job->y, batch, head, i);
        if (t->dtype == TD_BF16) {
            float *wide = (float *)m->dots + td_divide_up(job->queries, TD_TILE) * TD_TILE;
            bf16->widen(t->width, wide, dy);
            bf16->widen(t->width, wide + t->width, y);
            dy = wide;
            y = wide + t->width;
        }
        td_store_element(m->dots, attention_sums_dtype(job), i,
                         t->loops->transformer.dot(t->width, dy, y));
    }
}

static void backward_begin_head(const attention_job *job, backward_memory *m, int64_t batch,
                                int64_t head, td_conv_space *space)
{
    const td_tiles *t = &job->tiles;
    int64_t tiles = td_divide_up(job->queries, TD_TILE), bytes = td_tiles_turned_bytes(t);
    char *q = row_at(&job->q, batch, head, 0), *dy = row_at(&job->dy, batch, head, 0);
    m->q = td_tiles_right(t, q, job->q.token, job->queries, space);
    m->dy = td_tiles_right(t, dy, job->dy.token, job->queries, space);
    m->q_turned = td_conv_take(space, tiles * bytes);
    m->dy_turned = td_conv_take(space, tiles * bytes);
    m->lse = td_conv_take(space, tiles * TD_TILE * t->sum);
    m->dots = td_conv_take(space, (tiles * TD_TILE + 2 * t->width) * t->sum);
    if (m->lse == NULL) {
        return;
    }
    for (int64_t i = 0; i < tiles; i++) {
        int64_t queries = td_min64(TD_TILE, job->queries - i * TD_TILE);
        td_tiles_turn(t, m->q_turned + i * bytes, q + i * TD_TILE * job->q.token, job->q.token,
                      queries);
        td_tiles_turn(t, m->dy_turned + i * bytes, dy + i * TD_TILE * job->dy.token, job->dy.token,
                      queries);
    }
    memcpy(m->lse, job->lse + (batch * job->heads + head) * job->queries * t->sum,
           (size_t)(job->queries * t->sum));
    row_dots(job, m, batch, head);
    for (int64_t i = job->queries; i < tiles * TD_TILE; i++) { /* lanes of nothing: p is 0 there */
        td_store_element(m->lse, attention_sums_dtype(job), i, INFINITY);
        td_store_element(m->dots, attention_sums_dtype(job), i, 0.0);
    }
}

/* A tile: what it adds to dq, dk and dv. first: of its keys. */
static void backward_tile(const attention_job *job, const backward_memory *m, int64_t batch,
                          int64_t head, int64_t k0, int64_t q0, bool first)
{
    const td_tiles *t = &job->tiles;
    td_tile_part part = part_at(job, k0, q0);
    int64_t of = head / job->group;
    bool direct = t->dtype != TD_BF16;
    int64_t turned = q0 / TD_TILE * td_tiles_turned_bytes(t);
    td_tiles_scores(t, m->scores, td_left_from(m->k, k0), td_right_turned(t, m->q_turned + turned),
                    part);
    td_tiles_scores(t, m->grads, td_left_from(m->v, k0), td_right_turned(t, m->dy_turned + turned),
                    part);
    td_attention_tile tile = tile_of(job, m->scores, part);
    tile.grads = m->grads;
    tile.lse = m->lse + q0 * t->sum;
    tile.dots = m->dots + q0 * t->sum;
    t->loops->transformer.grad_tile(&tile);
    td_sink dv = { row_at(m->dv, batch, of, k0), m->dv->rows };
    td_sink dk = { row_at(m->dk, batch, of, k0), m->dk->rows };
    td_sink dq = { row_at(m->dq, batch, head, q0), m->dq->rows };
    td_left p = td_tiles_by_keys(t, m->scores, m->room, part);
    td_tiles_sum_queries(t, dv, p, td_right_from(t, m->dy, q0), part,
                         !first || (direct && job->accumulate[2]));
    p = td_tiles_by_keys(t, m->grads, m->room, part);
    td_tiles_sum_queries(t, dk, p, td_right_from(t, m->q, q0), part,
                         !first || (direct && job->accumulate[1]));
    p = td_tiles_by_queries(t, m->grads, m->room, part);
    td_tiles_sum_keys(t, dq, p, td_right_from(t, m->k_right, k0), part,
                      k0 > 0 || (direct && job->accumulate[0]));
}

/* Sums in f32 to the gradient of a head. */
static void put_sums(const attention_job *job, const backward_memory *m, int i, const head_rows *to,
                     int64_t batch, int64_t head)
{
    int64_t rows = i == 0 ? job->queries : job->keys;
    for (int64_t r = 0; r < rows && job->tiles.dtype == TD_BF16; r++) {
        td_tiles_put(&job->tiles, row_at(to, batch, head, r), row_at(&m->sums[i], 0, 0, r),
                     job->accumulate[i]);
    }
}

/* A head of keys and values, with all heads of queries that read it. */
static void backward_item(const attention_job *job, int64_t item, int64_t parts, char *scratch)
{
    (void)parts;
    td_conv_space space = { .base = scratch };
    int64_t kv_heads = job->heads / job->group, batch = item / kv_heads, of = item % kv_heads;
    backward_memory m;
    backward_begin(job, &m, batch, of, &space);
    for (int64_t head = of * job->group; head < (of + 1) * job->group; head++) {
        td_conv_space rest = space;
        backward_begin_head(job, &m, batch, head, &rest);
        for (int64_t k0 = 0; k0 < job->keys; k0 += TD_TILE) {
            int64_t first = job->past >= 0 && k0 > job->past ? (k0 - job->past) / TD_TILE : 0;
            for (int64_t q0 = first * TD_TILE; q0 < job->queries; q0 += TD_TILE) {
                backward_tile(job, &m, batch, head, k0, q0,
                              head == of * job->group && q0 == first * TD_TILE);
            }
        }
        put_sums(job, &m, 0, &job->dq, batch, head);
    }
    put_sums(job, &m, 1, &job->dk, batch, of);
    put_sums(job, &m, 2, &job->dv, batch, of);
}

/* ---- both ---- */

typedef struct attention_run {
    const attention_job *job;
    void (*item)(const attention_job *job, int64_t item, int64_t parts, char *scratch);
    int64_t items, parts;
    char *scratch;
    int64_t bytes;     /* of a thread */
    atomic_llong next; /* threads take items as they are free */
} attention_run;

static void run_thread(void *ctx, int64_t thread)
{
    attention_run *run = ctx;
    for (int64_t i; (i = atomic_fetch_add(&run->next, 1)) < run->items;) {
        run->item(run->job, i, run->parts, run->scratch + thread * run->bytes);
    }
    if (run->job->tiles.kernels->end) {
        run->job->tiles.kernels->end();
    }
}

static void run_items(td_device device, attention_run *run)
{
    const attention_job *job = run->job;
    double pairs = (double)job->queries * (double)job->keys * (double)job->tiles.width;
    bool small = pairs * (double)run->items / (double)run->parts < TD_GEMM_SERIAL_WORK;
    td_pool *pool = small ? NULL : td_cpu_pool(device);
    int64_t threads = td_min64(td_pool_threads(pool), run->items);
    run->scratch = td_scratch(device, (size_t)(threads * run->bytes));
    atomic_init(&run->next, 0);
    td_pool_run(pool, threads, run_thread, run);
    td_scratch_free(device, run->scratch);
}

/* A tensor as it lies, or a copy of the dtype and with dense rows. keep: see td_stage_out. */
static head_rows stage(td_staged *staged, const td_tensor *t, td_dtype dtype, bool out, bool keep)
{
    staged->scratch = NULL;
    if (t->dtype != dtype || (t->stride[3] != 1 && t->shape[3] != 1)) {
        if (out) {
            td_stage_out_as(staged, (td_tensor *)(uintptr_t)t, TD_ROW_MAJOR, dtype, keep);
        } else {
            td_stage_in_as(staged, t, TD_ROW_MAJOR, dtype);
        }
        t = staged->tensor;
    }
    int64_t size = (int64_t)td_dtype_size(t->dtype);
    return attention_rows_of(td_ptr(t), t->stride[0] * size, t->stride[1] * size,
                             t->stride[2] * size);
}

enum { STAGED_Q, STAGED_K, STAGED_V, STAGED_Y, STAGED };

static void attention_start(attention_job *job, const td_attention_args *args,
                            td_staged staged[STAGED], bool forward)
{
    td_dtype dtype = args->q->dtype;
    if (dtype == TD_BF16 && td_gemm_kernels_for(TD_BF16) == NULL) {
        dtype = TD_F32;
    }
    td_tiles_start(&job->tiles, dtype, args->q->shape[3]);
    job->queries = args->q->shape[1];
    job->keys = args->k->shape[1];
    job->heads = args->q->shape[2];
    job->group = job->heads / args->k->shape[2];
    job->past = args->causal ? job->keys - job->queries : -1;
    job->scale = args->scale;
    job->lse = td_ptr(args->lse);
    job->q = stage(&staged[STAGED_Q], args->q, dtype, false, false);
    job->k = stage(&staged[STAGED_K], args->k, dtype, false, false);
    job->v = stage(&staged[STAGED_V], args->v, dtype, false, false);
    job->y = stage(&staged[STAGED_Y], args->y, dtype, forward, false);
}

void td_cpu_attention(const td_attention_args *args)
{
    td_device device = td_device_of(args->q);
    if (td_numel(args->q) == 0) {
        return;
    }
    td_staged staged[STAGED];
    attention_job job;
    attention_start(&job, args, staged, true);
    int64_t heads = args->q->shape[0] * job.heads;
    bool few = heads < 2 * td_pool_threads(td_cpu_pool(device));
    int64_t parts = few ? td_divide_up(job.queries, TD_TILE) : 1;
    td_conv_space space = { 0 };
    forward_memory memory;
    forward_begin(&job, &memory, 0, 0, &space);
    attention_run run = { .job = &job,
                          .item = forward_item,
                          .items = heads * parts,
                          .parts = parts,
                          .bytes = space.used };
    run_items(device, &run);
    td_stage_end(&staged[STAGED_V], &staged[STAGED_K], &staged[STAGED_Q], &staged[STAGED_Y]);
}

void td_cpu_attention_grad(const td_attention_grad_args *args)
{
    const td_attention_args *forward = &args->forward;
    td_device device = td_device_of(forward->q);
    if (td_numel(forward->k) == 0) {
        return;
    }
    td_staged staged[STAGED], sdy, sdq, sdk, sdv;
    attention_job job;
    attention_start(&job, forward, staged, false);
    job.dy = stage(&sdy, args->dy, job.tiles.dtype, false, false);
    job.dq = stage(&sdq, args->dq, job.tiles.dtype, true, args->accumulate[0]);
    job.dk = stage(&sdk, args->dk, job.tiles.dtype, true, args->accumulate[1]);
    job.dv = stage(&sdv, args->dv, job.tiles.dtype, true, args->accumulate[2]);
    memcpy(job.accumulate, args->accumulate, sizeof job.accumulate);
    td_conv_space space = { 0 };
    backward_memory memory;
    backward_begin(&job, &memory, 0, 0, &space);
    backward_begin_head(&job, &memory, 0, 0, &space);
    attention_run run = { .job = &job,
                          .item = backward_item,
                          .items = args->dk->shape[0] * args->dk->shape[2],
                          .parts = 1,
                          .bytes = space.used };
    run_items(device, &run);
    td_stage_end(&sdv, &sdk, &sdq, &sdy);
    td_stage_end(&staged[STAGED_V], &staged[STAGED_K], &staged[STAGED_Q], &staged[STAGED_Y]);
}
