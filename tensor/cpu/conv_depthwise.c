/*
 * Depthwise convolutions, one input and one output channel in each group: forward and
 * backward-data. Backward-weights is in conv_depthwise_reduce.c.
 *
 * In HWNC the pictures at a pixel are one long array in which the channels, and with them the
 * weights, come round again and again: vectors take it as it comes. Pixels of a row that meet the
 * same taps are computed side by side, since their taps read the same pixels.
 *
 * A task has some columns of that array. The same columns of the next pixel lie far away, often by
 * a power of two, and such addresses push each other out of the caches. Where many taps read them
 * again, the rows of the source that a row of the result meets are copied to where they lie
 * together, with zeros for the padding at the sides.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    LINE = 64,
    MAX_TAPS = 64,           /* in a call */
    LEAST_TASKS = 8,         /* in place */
    CACHE_BYTES = 512 << 10, /* in place: of pixel rows that the rows of the kernel read again */
    LEAST_CHUNK = 64,        /* columns of a task */
    COPY_BYTES = 160 << 10,  /* on the stack of a task that copies */
    LEAST_COPIED = 128,      /* columns of one that copies; fewer are slow to fetch */
    MOST_COPIED = 256,
    FAR_BYTES = 8 << 20, /* of a source that stays in no cache */
    FEW_TAPS = 3,        /* of a row, that gain by pairs of rows in any case */
    LEAST_ROWS = 5,      /* of the kernel, that are worth a copy, where pixels are */
    BAD_BYTES = 2048,    /* a multiple of this apart: they push each other out of the caches */
};

/* Pixels q, q + apart, ... of a row of the result, which meet the same taps. */
typedef struct pixel_run {
    int64_t q, count;
    bool pairs; /* there are kernels for two rows of them */
} pixel_run;

typedef struct plan {
    td_depthwise_plan common;
    const td_conv_apply *apply;
    td_conv_strides from, to;
    /* [tap][weight_row], the channels once and again; NULL: they serve as they are. */
    char *weights;
    char *bias; /* likewise */
    int64_t weight_row;
    int apart; /* from one pixel of the result to the next that the same taps meet: 1, or backward
                  the stride */
    int step;  /* from source pixel to source pixel then */
    int taps_h, taps_w; /* of a call */
    bool collide;       /* pixels push each other out of the caches */
    bool far;           /* the source is larger than the caches, and not copied */
    bool pairs;         /* two rows of the result at a time, where that is possible */
    bool copies;
    int64_t lines, first, width; /* of the copy: rows, and pixels of each from the first on */
    pixel_run *runs;             /* of a row, in place */
    int64_t run_count;
    int64_t elements; /* of the pictures and channels at a pixel */
    int64_t columns;  /* of them, in a task */
    int64_t chunks, bands, band_rows;
} plan;

/* ---- for all passes ---- */

td_depthwise_plan td_depthwise_plan_make(const td_conv_problem *problem, bool backward,
                                         td_conv_space *space)
{
    td_depthwise_plan p = { .problem = problem,
                            .kernels = td_depthwise_kernels_for(problem->dtype),
                            .channels = problem->oc_all,
                            .replicas = 1,
                            .width = problem->oc_all };
    p.h = td_conv_taps_make(&problem->h, backward, space);
    p.w = td_conv_taps_make(&problem->w, backward, space);
    return p;
}

td_pool *td_depthwise_pool(td_pool *pool, const td_depthwise_plan *p)
{
    double work = (double)(p->h.size * p->w.size * p->channels) * (double)p->problem->n *
                  (double)(p->h.alive * p->w.alive);
    return work * TD_DEPTHWISE_COST < TD_GEMM_SERIAL_WORK ? NULL : pool;
}

/* ---- the plan ---- */

/* The source pixel, which may be one of the padding, that pixel q of the result meets at a tap;
 * false: none. */
static bool meets(const plan *p, int64_t q, int kw, int64_t *source)
{
    const td_conv_axis *axis = &p->common.problem->w;
    if (!p->apply->backward) {
        *source = q * axis->stride - axis->pad + (int64_t)kw * axis->dilation;
        return true;
    }
    int64_t shifted = q + axis->pad - (int64_t)kw * axis->dilation;
    *source = shifted / axis->stride;
    return shifted % axis->stride == 0;
}

/* What a line of the copy must hold: source pixels from p->first on, for all taps. */
static void find_width(plan *p)
{
    const td_conv_taps *w = &p->common.w;
    int64_t last = INT64_MIN;
    p->first = INT64_MAX;
    for (int64_t q = 0; q < td_min64(p->apart, w->size); q++) {
        for (int kw = 0; kw < w->kernel; kw++) {
            int64_t at;
            if (w->rank[kw] >= 0 && meets(p, q, kw, &at)) {
                p->first = td_min64(p->first, at);
                last = at > last ? at : last;
            }
        }
    }
    int64_t more = (td_divide_up(w->size, p->apart) - 1) * p->step;
    p->width = last >= p->first ? last - p->first + more + 1 : 0;
}

/* Whether copies are worth it, and fit. What is added for the padding are zeros times weights: with
 * an infinite weight that is no number, where otherwise nothing would be added. */
static bool cut_copies(plan *p)
{
    const td_depthwise_plan *c = &p->common;
    const td_conv_axis *h = &c->problem->h;
    bool back = p->apply->backward;
    int64_t size = (int64_t)c->kernels->size;
    if (c->h.alive < LEAST_ROWS || !p->collide || c->h.kernel * c->w.kernel > MAX_TAPS) {
        return false;
    }
    find_width(p);
    int64_t reach = (int64_t)(h->kernel - 1) * h->dilation / (back ? h->stride : 1);
    p->lines = td_min64(reach + 1, back ? h->out : h->in);
    int64_t line = p->width * p->lines * size;
    int64_t fit = line > 0 ? COPY_BYTES / line / LEAST_CHUNK * LEAST_CHUNK : 0;
    p->columns = td_min64(fit, MOST_COPIED);
    return fit >= LEAST_COPIED;
}

/* The columns of a pixel: the rows of pixels of a chunk that a row of the result meets stay in the
 * cache, and there are enough tasks. */
static void cut_in_place(plan *p)
{
    const td_conv_problem *problem = p->common.problem;
    int64_t bytes = (problem->h.kernel + 1) *
                    (p->apply->backward ? problem->w.out : problem->w.in) *
                    (int64_t)p->common.kernels->size;
    int64_t fit = CACHE_BYTES / (bytes > 0 ? bytes : 1);
    int64_t chunks = td_divide_up(p->elements, fit > LEAST_CHUNK ? fit : LEAST_CHUNK);
    int64_t wanted = td_divide_up(LEAST_TASKS, td_divide_up(p->common.h.size, p->band_rows));
    chunks = td_min64(chunks > wanted ? chunks : wanted, td_divide_up(p->elements, LEAST_CHUNK));
    p->columns = td_divide_up(td_divide_up(p->elements, chunks), LEAST_CHUNK) * LEAST_CHUNK;
}

static void cut_result(plan *p)
{
    const td_depthwise_plan *c = &p->common;
    const td_conv_axis *h = &c->problem->h;
    p->taps_w = c->w.kernel < MAX_TAPS ? c->w.kernel : MAX_TAPS;
    p->taps_w = p->taps_w > 0 ? p->taps_w : 1;
    p->taps_h = MAX_TAPS / p->taps_w;
    p->collide = p->from.column * (int64_t)c->kernels->size % BAD_BYTES == 0;
    p->copies = cut_copies(p);
    if (p->copies) {
        int64_t chunks = td_divide_up(p->elements, p->columns);
        p->band_rows = td_divide_up(c->h.size, td_divide_up(TD_DEPTHWISE_WANTED_TASKS, chunks));
    } else { /* rows below each other share what they meet; where there are only two, threads do */
        p->pairs = c->h.size > 2 && c->kernels->pair_widths && h->stride == 1 && h->dilation == 1 &&
                   c->h.alive > 1 && (h->kernel + 1) * c->w.kernel <= MAX_TAPS;
        p->band_rows = p->pairs ? 2 : 1;
        cut_in_place(p);
        int64_t pixels = p->apply->backward ? h->out * c->problem->w.out : h->in * c->problem->w.in;
        p->far = pixels * p->elements * (int64_t)c->kernels->size > FAR_BYTES;
    }
    p->chunks = td_divide_up(p->elements, p->columns);
    p->bands = td_divide_up(c->h.size, p->band_rows);
}

static plan apply_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    int64_t size = (int64_t)td_dtype_size(problem->dtype);
    plan p = { .common = td_depthwise_plan_make(problem, back, space), .apply = apply };
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    p.apart = back ? problem->w.stride : 1;
    p.step = back ? 1 : problem->w.stride;
    p.elements = problem->n * problem->oc_all;
    p.weight_row = p.common.channels;
    if (p.common.channels % TD_DEPTHWISE_LANES != 0 &&
        problem->n > 1) { /* a vector would read beyond */
        p.weight_row += TD_DEPTHWISE_LANES - 1;
        p.weights = td_conv_take(space, (int64_t)p.common.h.kernel * p.common.w.kernel *
                                            p.weight_row * size);
        p.bias = td_conv_take(space, p.weight_row * size);
    }
    p.runs = td_conv_take(space, p.common.w.size * (int64_t)sizeof *p.runs);
    if (space->base) {
        cut_result(&p);
    }
    return p;
}

/* The channels, and the first ones again. */
static void repeat(const plan *p, char *to, const char *from)
{
    int64_t size = (int64_t)p->common.kernels->size;
    for (int64_t done = 0, count; done < p->weight_row; done += count) {
        count = td_min64(p->common.channels, p->weight_row - done);
        memcpy(to + done * size, from, (size_t)(count * size));
    }
}

/* ---- a part of the result ---- */

/* Some columns of some rows, some taps. */
typedef struct part {
    const plan *plan;
    int kh, kw;              /* the first taps */
    int64_t column, columns; /* elements at a pixel */
    int64_t copied;          /* the row after the last one that has been copied */
    char *copy;              /* line i has the row that is i modulo plan->lines */
} part;

/* Line of the copy for a row of the source. */
static char *copy_of(const part *w, int64_t row)
{
    const plan *p = w->plan;
    return w->copy + row % p->lines * p->width * p->columns * (int64_t)p->common.kernels->size;
}

/* And begins to load the row below, which is wanted next. */
static void copy_line(const part *w, int64_t row)
{
    const plan *p = w->plan;
    const td_conv_axis *axis = &p->common.problem->w;
    int64_t size = (int64_t)p->common.kernels->size, bytes = w->columns * size;
    int64_t all = p->apply->backward ? axis->out : axis->in, step = p->columns * size;
    const char *from = (const char *)p->apply->source + (row * p->from.row + w->column) * size;
    const uintptr_t below = (uintptr_t)(p->from.row * size);
    char *to = copy_of(w, row);
    for (int64_t i = p->first; i < p->first + p->width; i++, to += step) {
        if (i < 0 || i >= all) {
            memset(to, 0, (size_t)bytes);
            continue;
        }
        const char *at = from + i * p->from.column * size;
        for (int64_t b = 0; b < bytes; b += LINE) {
            __builtin_prefetch((const void *)((uintptr_t)at + below + (uintptr_t)b));
        }
        memcpy(to, at, (size_t)bytes);
    }
}

/* Copies what a row of the result, and those below it, meet and has not been copied yet. */
static void copy_lines(part *w, const int32_t *source_h)
{
    int64_t last = -1;
    for (int kh = 0; kh < w->plan->common.h.kernel; kh++) {
        last = source_h[kh] > last ? source_h[kh] : last;
    }
    int64_t first = last + 1 - w->plan->lines;
    for (int64_t row = first > w->copied ? first : w->copied; row <= last; row++) {
        copy_line(w, row);
        w->copied = row + 1;
    }
}

/* The taps of a row of the kernel that a run meets, from left to right in the source. */
typedef struct met_taps {
    int count;
    bool beside;             /* they follow each other as the source pixels do */
    int64_t pixel[MAX_TAPS]; /* for the first of the run, in a line */
    int kw[MAX_TAPS];
} met_taps;

static void find_taps(const part *w, int64_t q, met_taps *met)
{
    const plan *p = w->plan;
    int kernel = p->common.w.kernel, left = kernel - w->kw;
    int taps = left < p->taps_w ? left : p->taps_w;
    met->count = 0;
    met->beside = true;
    for (int i = 0; i < taps; i++) {
        /* Backward, the last one comes first. */
        int kw = w->kw + (p->apply->backward ? taps - 1 - i : i);
        int64_t at = p->common.w.source[q * kernel + kw];
        if (p->copies ? p->common.w.rank[kw] < 0 || !meets(p, q, kw, &at) : at < 0) {
            continue;
        }
        at -= p->copies ? p->first : 0;
        int64_t before = met->count > 0 ? met->pixel[met->count - 1] : at - p->step;
        met->beside = met->beside && at == before + p->step;
        met->pixel[met->count] = at;
        met->kw[met->count++] = kw;
    }
}

/* Whether pixel q + apart meets the same taps as q, each `step` pixels further on. */
static bool taps_follow(const td_conv_taps *taps, int64_t q, int64_t apart, int step)
{
    if (q + apart >= taps->size) {
        return false;
    }
    const int32_t *here = taps->source + q * taps->kernel, *next = here + apart * taps->kernel;
    for (int tap = 0; tap < taps->kernel; tap++) {
        if (here[tap] < 0 ? next[tap] >= 0 : next[tap] != here[tap] + step) {
            return false;
        }
    }
    return true;
}

/* The runs of a row of pixels, in place. */
static void find_runs(plan *p)
{
    const td_conv_taps *w = &p->common.w;
    const part any = { .plan = p };
    for (int64_t q = 0; q < w->size; q++) {
        if (q >= p->apart && taps_follow(w, q - p->apart, p->apart, p->step)) {
            continue; /* it belongs to the run of that */
        }
        pixel_run next = { q, 1, false };
        for (int64_t last = q; taps_follow(w, last, p->apart, p->step); last += p->apart) {
            next.count++;
        }
        met_taps met;
        find_taps(&any, q, &met);
        next.pairs = p->pairs && next.count > 1 && met.beside &&
                     (p->collide || met.count <= FEW_TAPS) && met.count <= TD_DEPTHWISE_BESIDE &&
                     (p->common.kernels->pair_widths >> met.count & 1);
        p->runs[p->run_count++] = next;
    }
}

/* What is the same for all taps, and for both rows of a pair. */
static td_depthwise_block block_of(const part *w, int64_t row, const pixel_run *run,
                                   const met_taps *met)
{
    const plan *p = w->plan;
    const td_conv_apply *a = p->apply;
    int64_t size = (int64_t)p->common.kernels->size;
    bool begins = w->kh == 0 && w->kw == 0;
    td_depthwise_block block = {
        .beside = met->beside ? met->count : 0,
        .y = (char *)a->result + (row * p->to.row + run->q * p->to.column + w->column) * size,
        .x_step = p->step * (p->copies ? p->columns : p->from.column),
        .y_step = p->apart * p->to.column,
        .rows = run->count,
        .columns = w->columns,
        .far = p->far,
        .period = p->common.channels,
        .phase = w->column % p->common.channels,
        .accumulate = a->accumulate || !begins,
    };
    if (begins) {
        block.bias = a->bias && p->bias ? p->bias : a->bias;
    }
    return block;
}

/* The taps of row `kh` of the kernel, and of row `below` for the row of the result below; -1: none.
 */
static int put_taps(const part *w, td_depthwise_tap *taps, const met_taps *met, int64_t source,
                    int kh, int below)
{
    const plan *p = w->plan;
    int64_t size = (int64_t)p->common.kernels->size;
    int64_t tap = p->weight_row * size, row = p->common.w.kernel * tap;
    int64_t pixel = (p->copies ? p->columns : p->from.column) * size;
    int64_t in_place = (source * p->from.row + w->column) * size;
    const char *line = p->copies ? copy_of(w, source) : (const char *)p->apply->source + in_place;
    const char *weights = p->weights ? p->weights : p->apply->weights;
    for (int i = 0; i < met->count; i++) {
        const char *at = weights + met->kw[i] * tap;
        taps[i] = (td_depthwise_tap){ line + met->pixel[i] * pixel, kh < 0 ? NULL : at + kh * row,
                                      below < 0 ? NULL : at + below * row };
    }
    return met->count;
}

static void apply_run(const part *w, int64_t row, const pixel_run *run)
{
    const plan *p = w->plan;
    const int32_t *source_h = p->common.h.source + row * p->common.h.kernel;
    met_taps met;
    td_depthwise_tap taps[MAX_TAPS];
    find_taps(w, run->q, &met);
    td_depthwise_block block = block_of(w, row, run, &met);
    block.taps = taps;
    for (int kh = w->kh; kh < w->kh + p->taps_h && kh < p->common.h.kernel; kh++) {
        if (source_h[kh] >= 0) {
            block.count += put_taps(w, taps + block.count, &met, source_h[kh], kh, -1);
        }
    }
    if (block.count > 0 || (w->kh == 0 && w->kw == 0)) { /* every pixel is written */
        p->common.kernels->apply(&block);
    }
}

/* Which row of the kernel meets a row of the source, at stride and dilation 1; -1: none. */
static int row_of_kernel(const plan *p, int64_t row, int64_t source)
{
    const td_conv_axis *h = &p->common.problem->h;
    int64_t kh = h->pad + (p->apply->backward ? row - source : source - row);
    return kh >= 0 && kh < h->kernel ? (int)kh : -1;
}

/* Rows `row` and `row` + 1 of the result together; false: they meet nothing. */
static bool apply_pair(const part *w, int64_t row, const pixel_run *run)
{
    const plan *p = w->plan;
    const int32_t *source_h = p->common.h.source + row * p->common.h.kernel;
    met_taps met;
    td_depthwise_tap taps[MAX_TAPS];
    find_taps(w, run->q, &met);
    td_depthwise_block block = block_of(w, row, run, &met);
    block.taps = taps;
    block.y_below = p->to.row;
    int64_t first = INT64_MAX, last = -1;
    for (int i = 0; i < 2 * p->common.h.kernel; i++) { /* of both rows, which lie together */
        if (source_h[i] >= 0) {
            first = td_min64(first, source_h[i]);
            last = source_h[i] > last ? source_h[i] : last;
        }
    }
    for (int64_t source = first; source <= last; source++) {
        int kh = row_of_kernel(p, row, source), below = row_of_kernel(p, row + 1, source);
        block.count += put_taps(w, taps + block.count, &met, source, kh, below);
    }
    if (block.count > 0) {
        p->common.kernels->apply(&block);
    }
    return block.count > 0;
}

/* Rows [row, end) of the result, from copies: of all pixels all taps are there. A function of its
 * own, so that others need not have room for the copies. */
static __attribute__((noinline)) void apply_copied(const part *columns, int64_t row, int64_t end)
{
    const plan *p = columns->plan;
    const td_conv_taps *h = &p->common.h;
    _Alignas(LINE) char copy[COPY_BYTES];
    part w = *columns;
    w.copy = copy;
    for (; row < end; row++) {
        copy_lines(&w, h->source + row * h->kernel);
        for (int64_t q = 0; q < td_min64(p->apart, p->common.w.size); q++) {
            pixel_run all = { q, td_divide_up(p->common.w.size - q, p->apart), false };
            apply_run(&w, row, &all);
        }
    }
}

static void apply_row_in_place(part *w, int64_t row, const pixel_run *run)
{
    const plan *p = w->plan;
    for (w->kh = 0; w->kh == 0 || w->kh < p->common.h.kernel; w->kh += p->taps_h) {
        for (w->kw = 0; w->kw == 0 || w->kw < p->common.w.kernel; w->kw += p->taps_w) {
            apply_run(w, row, run);
        }
    }
}

/* Rows [row, end), which are one or two. */
static void apply_in_place(const part *columns, int64_t row, int64_t end)
{
    const plan *p = columns->plan;
    part w = *columns;
    for (int64_t i = 0; i < p->run_count; i++) {
        w.kh = w.kw = 0;
        if (p->runs[i].pairs && end - row == 2 && apply_pair(&w, row, &p->runs[i])) {
            continue;
        }
        for (int64_t r = row; r < end; r++) {
            apply_row_in_place(&w, r, &p->runs[i]);
        }
    }
}

static void apply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t row = task / p->chunks * p->band_rows, column = task % p->chunks * p->columns;
    int64_t end = td_min64(p->common.h.size, row + p->band_rows);
    part w = { .plan = p, .column = column, .columns = td_min64(p->columns, p->elements - column) };
    (p->copies ? apply_copied : apply_in_place)(&w, row, end);
}

int64_t td_conv_depthwise_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    apply_plan(apply, &space);
    return space.used;
}

void td_conv_depthwise_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = apply_plan(apply, &space);
    if (!p.copies) {
        find_runs(&p);
    }
    int64_t size = (int64_t)p.common.kernels->size;
    int64_t taps = (int64_t)p.common.h.kernel * p.common.w.kernel;
    for (int64_t tap = 0; p.weights && tap < taps; tap++) {
        repeat(&p, p.weights + tap * p.weight_row * size,
               (const char *)apply->weights + tap * p.common.channels * size);
    }
    if (p.bias && apply->bias) {
        repeat(&p, p.bias, apply->bias);
    }
    td_pool_run(td_depthwise_pool(pool, &p.common), p.chunks * p.bands, apply_task, &p);
}
