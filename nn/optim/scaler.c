#include "nn/optim/scaler.h"

#include "autograd/autograd.h"
#include "tensor/kernels.h"

#include <math.h>
#include <stdlib.h>

struct td_scaler {
    td_scaler_options options;
    td_scaler_state state;
    bool gives_up;
    td_tensor *found; /* i32, on the gradients' device: 1 if one is not finite; made at first use */
};

/* Below, steps are left out for another reason than a scale that is too large. */
static const double LEAST_SCALE = 0x1p-24;
static const double MOST_SCALE = 0x1p120;

static double or_default(double value, double otherwise)
{
    return value > 0 ? value : otherwise;
}

td_scaler *td_scaler_new(const td_scaler_options *options)
{
    static const td_scaler_options none = { 0 };
    const td_scaler_options *o = options != NULL ? options : &none;
    TD_REQUIRE(o->scale >= 0 && o->growth >= 0 && o->backoff >= 0 && o->patience >= 0, TD_HERE,
               "td_scaler_new: an option is negative");
    TD_REQUIRE(
        (o->growth == 0 || o->growth > 1) && o->backoff < 1, TD_HERE,
        "td_scaler_new: growth is %g and must be more than 1; backoff is %g and must be less",
        o->growth, o->backoff);
    td_scaler *s = calloc(1, sizeof *s);
    if (s == NULL) {
        td_fail(TD_E_NOMEM, "no memory for a loss scaler");
        return NULL;
    }
    s->options = (td_scaler_options){
        .scale = or_default(o->scale, 65536),
        .growth = or_default(o->growth, 2),
        .backoff = or_default(o->backoff, 0.5),
        .patience = o->patience > 0 ? o->patience : 2000,
    };
    s->state.scale = s->options.scale;
    return s;
}

void td_scaler_free(td_scaler *scaler)
{
    if (scaler != NULL) {
        td_free(scaler->found);
        free(scaler);
    }
}

td_tensor *td_scaler_loss(td_scaler *scaler, td_tensor *loss)
{
    return scaler != NULL ? td_mul_scalar(loss, scaler->state.scale) : loss;
}

/* Whether each parameter has a gradient: then all of them are one stretch of memory. */
static bool all_have_gradients(const td_params *params)
{
    for (int i = 0; i < td_params_count(params); i++) {
        if (td_grad(td_params_get(params, i)->tensor) == NULL) {
            return false;
        }
    }
    return true;
}

static void unscale_gradients(const td_scaler *s, td_params *params)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(s->found));
    double factor = 1.0 / s->state.scale;
    if (all_have_gradients(params)) {
        kernels->unscale(td_params_flat_grad(params), factor, s->found);
        return;
    }
    for (int i = 0; i < td_params_count(params); i++) {
        td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
        if (grad != NULL) {
            kernels->unscale(grad, factor, s->found);
        }
    }
}

static void adapt(td_scaler *s, bool finite)
{
    td_scaler_state *now = &s->state;
    s->gives_up = !finite && now->scale <= LEAST_SCALE;
    if (!finite) {
        now->good = 0;
        now->skipped++;
        now->scale = fmax(now->scale * s->options.backoff, LEAST_SCALE);
    } else if (++now->good >= s->options.patience) {
        now->good = 0;
        now->scale = fmin(now->scale * s->options.growth, MOST_SCALE);
    }
}

bool td_scaler_unscale(td_scaler *scaler, td_params *params)
{
    if (scaler == NULL) {
        return true;
    }
    td_device device = td_device_of(td_params_flat(params));
    if (scaler->found == NULL || !td_same_device(td_device_of(scaler->found), device)) {
        td_free(scaler->found);
        scaler->found = td_zeros(TD_SHAPE(1), TD_I32, device);
        TD_REQUIRE(scaler->found != NULL, TD_HERE, "td_scaler_unscale: %s", td_last_error());
    }
    td_fill_(scaler->found, 0);
    unscale_gradients(scaler, params);
    bool finite = td_item(scaler->found) == 0;
    adapt(scaler, finite);
    return finite;
}

bool td_scaler_gives_up(const td_scaler *scaler)
{
    return scaler != NULL && scaler->gives_up;
}

td_scaler_state td_scaler_now(const td_scaler *scaler)
{
    return scaler->state;
}

void td_scaler_set(td_scaler *scaler, const td_scaler_state *state)
{
    scaler->state = *state;
}
