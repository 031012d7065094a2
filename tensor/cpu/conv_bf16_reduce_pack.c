/* Backward-weights in bf16: x turned and dy in pairs of pictures, a slab at a time. */
#include "tensor/cpu/conv_bf16_reduce.h"

#include <string.h>

/* 32 pictures of x at a tap: their rows lie `stride` apart, or are brought together here, zeros
 * where the picture has ended. */
typedef struct gathered {
    td_bf16_source source;
    _Alignas(64) char memory[TD_BF16_BLOCK * TD_BF16_BLOCK * sizeof(float)];
} gathered;

static void gather_row(const td_bf16_reduce *p, gathered *g, const char *base, int64_t size,
                       int plane, int64_t first, int count, int channels)
{
    const td_conv_axis *w = &p->problem.w;
    int64_t bytes = channels * size;
    g->source.data = g->memory;
    g->source.stride = channels;
    for (int i = 0; i < count; i++) {
        int64_t out = (first + i) / p->problem.n, image = (first + i) % p->problem.n;
        int32_t in = p->w.source[out * w->kernel + plane];
        char *to = g->memory + i * bytes;
        if (in < 0) {
            memset(to, 0, (size_t)bytes);
        } else {
            memcpy(to, base + (in * p->x.at.column + image * p->x.at.image) * size, (size_t)bytes);
        }
    }
}

/* Block `block` of 32 pictures of one unit of x, 32 channels from `channel` of all on. low: of the
 * plane of low parts. */
static void pack_x_block(const td_bf16_reduce *p, td_bf16 *to, int64_t channel, int channels,
                         int plane, int64_t row, int64_t unit, int64_t block, int64_t low_plane)
{
    int64_t size = (int64_t)td_dtype_size(p->x.dtype), first = block * TD_BF16_BLOCK;
    const char *base = p->x.data + (row * p->x.at.row + channel + low_plane) * size;
    int64_t all = p->problem.n * (p->whole_rows ? p->problem.w.out : 1);
    int count = (int)td_min64(TD_BF16_BLOCK, all - first);
    int64_t low = p->x.dtype == TD_F32 ? p->packed_x.low : 0;
    gathered g;
    g.source.dtype = p->x.dtype;
    if (p->whole_rows) {
        gather_row(p, &g, base, size, plane, first, count, channels);
    } else {
        g.source.data = base + (unit * p->x.at.column + first * p->x.at.image) * size;
        g.source.stride = p->x.at.image;
    }
    td_bf16_pack_a_turned(to, TD_BF16_BLOCK, low, &g.source, channels, count);
}

/* One row of x, 32 of its channels, one plane. */
static void pack_x_task(const td_bf16_reduce *p, int64_t task)
{
    int64_t row = p->slab.x_row + task % p->slab.x_rows;
    int plane = (int)(task / p->slab.x_rows % p->planes);
    int64_t channels = task / p->slab.x_rows / p->planes; /* block of them, of all groups */
    int64_t group = channels / p->ic_blocks, c0 = channels % p->ic_blocks * TD_BF16_BLOCK;
    int count = (int)td_min64(TD_BF16_BLOCK, p->problem.ic - c0);
    int64_t channel = group * p->problem.ic + c0;
    if (!p->used_h[row] || (p->whole_rows && p->w.rank[plane] < 0)) {
        return;
    }
    for (int64_t unit = 0; unit < p->packed_x.width; unit++) {
        if (!p->whole_rows && !p->used_w[unit]) {
            continue;
        }
        td_bf16 *to = td_bf16_reduce_x(p, channels, plane, row, unit);
        for (int64_t b = 0; b < p->slab.blocks; b++, to += TD_BF16_STEP) {
            int64_t block = p->slab.block + b;
            pack_x_block(p, to, channel, count, plane, row, unit, block, 0);
            if (p->x.low_plane) {
                pack_x_block(p, to + p->packed_x.low, channel, count, plane, row, unit, block,
                             p->x.low_plane);
            }
        }
    }
}

/* One row of dy, one panel. */
static void pack_dy_task(const td_bf16_reduce *p, int64_t task)
{
    int64_t row = p->slab.y_row + task % p->slab.y_rows;
    int64_t panel = task / p->slab.y_rows; /* of all groups */
    int64_t group = panel / p->panels, c0 = panel % p->panels * TD_BF16_BLOCK;
    int columns = (int)td_min64(TD_BF16_BLOCK, p->problem.oc - c0);
    int64_t size = (int64_t)td_dtype_size(p->dy.dtype);
    int64_t all = p->problem.n * (p->whole_rows ? p->problem.w.out : 1);
    td_bf16_source from = { .dtype = p->dy.dtype, .stride = p->dy.at.image };
    for (int64_t unit = 0; unit < p->packed_dy.width; unit++) {
        td_bf16 *to = td_bf16_reduce_dy(p, panel, row, unit);
        for (int64_t b = 0; b < p->slab.blocks; b++, to += TD_BF16_STEP) {
            int64_t first = (p->slab.block + b) * TD_BF16_BLOCK;
            int64_t at = row * p->dy.at.row + unit * p->dy.at.column + first * p->dy.at.image +
                         group * p->problem.oc + c0;
            from.data = p->dy.data + at * size;
            td_bf16_pack_b(to, p->packed_dy.low, &from, (int)td_min64(TD_BF16_BLOCK, all - first),
                           columns, TD_BF16_BLOCK);
        }
    }
}

int64_t td_bf16_reduce_x_tasks(const td_bf16_reduce *p)
{
    return p->problem.groups * p->ic_blocks * p->planes * p->slab.x_rows;
}

void td_bf16_reduce_pack(void *ctx, int64_t task)
{
    const td_bf16_reduce *p = ctx;
    if (task < td_bf16_reduce_x_tasks(p)) {
        pack_x_task(p, task);
    } else {
        pack_dy_task(p, task - td_bf16_reduce_x_tasks(p));
    }
}
