/* PyTorch's initialisations, draw by draw, from the default generator; at once, or deferred. */
#include "nn/internal.h"
#include "tensor/storage.h"

#include <math.h>
#include <stdlib.h>

static _Thread_local bool blank, defers;

bool td_init_blank(bool on)
{
    bool before = blank;
    blank = on;
    return before;
}

bool td_defer_init(bool on)
{
    bool before = defers;
    defers = on;
    return before;
}

/* ---- deferred tensors: their storage has no memory, and this owner ---- */

typedef struct deferred {
    td_lender lender; /* first */
    td_draw draw;
} deferred;

static void forget(td_lender *lender, void *data)
{
    (void)data;
    free(lender);
}

td_draw *td_draw_of(const td_tensor *t)
{
    const td_storage *s = t->storage;
    deferred *d = s != NULL && s->kind == TD_STORAGE_LENT ? s->owner : NULL;
    return d != NULL && d->lender.give_back == forget ? &d->draw : NULL;
}

td_tensor *td_draw_later(const td_draw *draw, td_shape shape, td_dtype dtype, td_layout layout,
                         td_device device)
{
    deferred *d = malloc(sizeof *d);
    TD_CHECK_NULL(d != NULL, TD_E_NOMEM, "no memory to note how a tensor is drawn");
    *d = (deferred){ { forget }, *draw };
    td_tensor *t = td_new_away(shape, dtype, layout, device, &d->lender);
    if (t == NULL) {
        free(d);
    }
    return t;
}

td_tensor *td_init_new(td_shape shape, td_layout layout)
{
    if (defers && shape.ndim > 1) {
        return td_draw_later(&(td_draw){ .kind = TD_DRAW_ZEROS }, shape, TD_F32, layout, TD_CPU);
    }
    td_tensor *t = td_new_layout(shape, TD_F32, layout, TD_CPU);
    if (t != NULL && blank) {
        td_fill_(t, 0.0);
    }
    return t;
}

/* ---- draws ---- */

static void draw_by(td_generator *g, const td_draw *draw, td_tensor *t)
{
    if (draw->kind == TD_DRAW_UNIFORM) {
        td_uniform_(t, draw->low, draw->high, g);
    } else if (draw->kind == TD_DRAW_NORMAL) {
        td_normal_(t, draw->low, draw->high, g);
    } else {
        td_fill_(t, 0.0);
    }
    if (draw->has_zero_row) {
        td_init_zero_row_(t, draw->zero_row);
    }
}

void td_draw_now(const td_draw *draw, td_tensor *t)
{
    td_generator g = draw->generator;
    draw_by(&g, draw, t);
}

/* By the default generator, which then is behind the draw. */
static void draw_or_note(td_tensor *t, td_draw draw)
{
    td_generator *g = td_default_generator();
    td_draw *later = td_draw_of(t);
    if (!blank && later != NULL) {
        *later = draw;
        later->generator = *g;
        (draw.kind == TD_DRAW_UNIFORM ? td_uniform_skip : td_normal_skip)(g, td_numel(t));
    } else if (!blank) {
        draw_by(g, &draw, t);
    }
}

void td_init_uniform_(td_tensor *t, double bound)
{
    draw_or_note(t, (td_draw){ .kind = TD_DRAW_UNIFORM, .low = -bound, .high = bound });
}

void td_init_normal_(td_tensor *t, double std)
{
    draw_or_note(t, (td_draw){ .kind = TD_DRAW_NORMAL, .high = std });
}

void td_init_zero_row_(td_tensor *t, int64_t row)
{
    td_draw *later = td_draw_of(t);
    if (later != NULL) {
        later->has_zero_row = true;
        later->zero_row = row;
    }
    for (int64_t k = 0; later == NULL && k < t->shape[1]; k++) {
        td_set(t, (int64_t[]){ row, k }, 0.0);
    }
}

/* The inputs that one output of a weight [O,I,...] sums over. */
static int64_t fan_in_of(const td_tensor *weight)
{
    int64_t outputs = weight->shape[0];
    return outputs > 0 ? td_numel(weight) / outputs : 0;
}

void td_init_kaiming_uniform_(td_tensor *weight)
{
    int64_t fan_in = fan_in_of(weight);
    if (fan_in == 0) {
        return;
    }
    /* He et al. 2015 for a leaky relu of slope a; the steps as PyTorch rounds them. */
    double a = sqrt(5.0);
    double gain = sqrt(2.0 / (1.0 + a * a));
    double bound = sqrt(3.0) * (gain / sqrt((double)fan_in));
    td_init_uniform_(weight, bound);
}

void td_init_bias_uniform_(td_tensor *bias, int64_t fan_in)
{
    if (fan_in > 0) {
        td_init_uniform_(bias, 1.0 / sqrt((double)fan_in));
    }
}

void td_init_kaiming_normal_fan_in_(td_tensor *weight)
{
    int64_t fan_in = fan_in_of(weight);
    if (fan_in > 0) {
        td_init_normal_(weight, sqrt(2.0) / sqrt((double)fan_in));
    }
}

void td_init_kaiming_normal_fan_out_(td_tensor *weight)
{
    int64_t inputs = weight->ndim > 1 ? weight->shape[1] : 1;
    int64_t fan_out = inputs > 0 ? td_numel(weight) / inputs : 0;
    if (fan_out > 0) {
        td_init_normal_(weight, sqrt(2.0) / sqrt((double)fan_out));
    }
}
