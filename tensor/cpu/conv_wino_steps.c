/* The steps of Winograd's convolutions: conv_wino_internal.h. */
#include "tensor/cpu/conv_wino_internal.h"

#include "tensor/cpu/cpus.h"

#include <sched.h>
#include <string.h>

enum {
    TAPS = TD_WINO_TAPS * TD_WINO_TAPS,
    PACK_DEPTH = 16, /* channels of weights in a task */
    MAX_SLOTS = 64,
};

typedef td_wino_plan plan;
typedef td_wino_picture picture;

/* ---- memory for threads ---- */

td_wino_slots td_wino_make_slots(td_conv_space *space, int64_t tasks, int64_t size)
{
    td_wino_slots s = { .count = (int)td_min64(tasks, td_min64(td_default_threads(), MAX_SLOTS)),
                        .size = td_wino_round_up(size, TD_WINO_PAD) };
    s.memory = td_wino_floats(space, s.count * s.size);
    s.taken = td_conv_take(space, s.count * (int64_t)sizeof *s.taken);
    for (int i = 0; space->base && i < s.count; i++) {
        atomic_flag_clear(&s.taken[i]);
    }
    return s;
}

/* Waits only if more threads are at work than td_default_threads says. */
float *td_wino_take_slot(const td_wino_slots *s)
{
    for (;;) {
        for (int i = 0; i < s->count; i++) {
            if (!atomic_flag_test_and_set_explicit(&s->taken[i], memory_order_acquire)) {
                return s->memory + i * s->size;
            }
        }
        sched_yield();
    }
}

void td_wino_give_slot(const td_wino_slots *s, const float *slot)
{
    atomic_flag_clear_explicit(&s->taken[(slot - s->memory) / s->size], memory_order_release);
}

/* ---- tiles ---- */

/* The pixels of a tile of size x size at (h, w); outside of the picture there are none. */
static void find_pixels(td_wino_tile *tile, const picture *from, int64_t n, int64_t h, int64_t w,
                        int size)
{
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < size; j++) {
            bool inside = h + i >= 0 && h + i < from->h && w + j >= 0 && w + j < from->w;
            int64_t at = ((h + i) * from->w + w + j) * n * from->channels;
            tile->pixel[i * size + j] = inside ? (float *)from->data + at : NULL;
        }
    }
}

void td_wino_transform(const plan *p, void (*fn)(const td_wino_tile *), bool wide,
                       const td_wino_part *part, td_wino_tile tile)
{
    const picture *from = wide ? &p->in : &p->out;
    int64_t n = p->desc->n;
    tile.image = from->channels;
    tile.count = part->channels;
    tile.row = from->width;
    tile.step = from->step;
    tile.bias = tile.bias ? tile.bias + part->channel : NULL;
    for (int64_t row = 0; row < part->rows; row += tile.images) {
        int64_t number = (part->first + row) / n, image = (part->first + row) % n;
        int64_t h = number / p->tiles_w * TD_WINO_OUT, w = number % p->tiles_w * TD_WINO_OUT;
        tile.images = td_min64(n - image, part->rows - row);
        tile.points = part->points + row * tile.row;
        if (wide) {
            find_pixels(&tile, from, n, h - p->pad, w - p->pad, TD_WINO_IN);
        } else {
            find_pixels(&tile, from, n, h, w, TD_WINO_OUT);
        }
        for (int i = 0; i < TD_WINO_POINTS; i++) {
            if (tile.pixel[i]) {
                tile.pixel[i] += image * tile.image + part->channel;
            }
        }
        fn(&tile);
    }
}

/* ---- products ---- */

/* PACK_DEPTH channels of `in`, one panel of `out`: collects the nine taps, and transforms them. */
static void weights_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv2d_desc *d = p->desc;
    bool back = p->call->pass == TD_CONV2D_BACKWARD_DATA;
    int64_t width = p->gemm->panel, panel = task % p->panels;
    int64_t k0 = task / p->panels * PACK_DEPTH, first = panel * width;
    int64_t k = td_min64(PACK_DEPTH, p->in.channels - k0);
    int64_t n = td_min64(width, p->out.channels - first);
    _Alignas(64) float taps[TAPS * PACK_DEPTH * TD_GEMM_MAX_PANEL_BYTES / sizeof(float)];
    if (n < width) {
        memset(taps, 0, sizeof taps);
    }
    for (int tap = 0; tap < TAPS; tap++) {
        const float *from = (const float *)p->call->w + tap * d->ic * d->oc;
        from += back ? first * d->oc + k0 : k0 * d->oc + first;
        int to = back ? TAPS - 1 - tap : tap; /* turned by half a turn */
        p->gemm->pack(taps + to * PACK_DEPTH * width, width, from, k, n, back ? 1 : d->oc,
                      back ? d->oc : 1);
    }
    p->wino->w_to_points(p->weights + (panel * p->in.channels + k0) * width, p->weights_step, taps,
                         PACK_DEPTH * width, k * width);
}

void td_wino_weights(td_pool *pool, plan *p)
{
    td_pool_run(pool, td_divide_up(p->in.channels, PACK_DEPTH) * p->panels, weights_task, p);
}

void td_wino_multiply(const plan *p, const float *a, const float *b, float *c, int64_t rows, int n)
{
    td_gemm_term term;
    td_gemm_block block = {
        .terms = &term,
        .count = 1,
        .a_col = 1,
        .b_row = p->gemm->panel,
        .c = c,
        .m = rows,
        .n = n,
    };
    for (int64_t k = 0; k < p->in.channels; k += TD_WINO_MAX_DEPTH) {
        term = (td_gemm_term){ a + k, b + k * block.b_row,
                               td_min64(TD_WINO_MAX_DEPTH, p->in.channels - k) };
        td_gemm_strided(p->gemm, &block, p->in.channels, p->out.channels);
        block.accumulate = true;
    }
}
