/* Loss scaling for training in f16. */
#include "nn/extra/scaler.h"
#include "nn/optim/skips.h"

#include "nn/extra/inspect.h"
#include "nn/shared/slices.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/kernels/kernels.h"
#include "tensor/system/number.h"
#include "tensor/part.h"
#include "tensor/storage.h"

#include <inttypes.h>
#include <stdlib.h>

struct td_scaler {
    td_checkpoint_part part; /* first: checkpoints see it alone */
    td_scaler_state in_file; /* what is saved or loaded */
    td_scaler_options options;
    td_scaler_state first; /* what the numbers begin with */
    const td_params *of;   /* of whose captured steps the device decides; NULL: of none yet */
    td_tensor *numbers;    /* f64 [TD_SCALE_NUMBERS], on the gradients' device; made at first use.
                              The device changes them: they are read when somebody asks */
    td_tensor *factor, *outcome; /* two of them, as scalars */
    td_tensor *found;            /* i32, there: 1 if a gradient is not finite */
};

/* Below, steps are skipped for another reason than a scale that is too large. */
static const double LEAST_SCALE = 0x1p-24;
static const double MOST_SCALE = 0x1p120;

static double or_default(double value, double otherwise)
{
    return value > 0 ? value : otherwise;
}

/* ---- in checkpoints: "scale good skipped" ---- */

static char *put_state(const void *of)
{
    const td_scaler_state *s = of;
    return td_format("%.17g %" PRId64 " %" PRId64, s->scale, s->good, s->skipped);
}

static bool read_state(const char *text, void *to)
{
    td_scaler_state *s = to;
    char *counts;
    int used = 0;
    s->scale = td_strtod(text, &counts);
    return sscanf(counts, " %" SCNd64 " %" SCNd64 "%n", &s->good, &s->skipped, &used) == 2 &&
           counts[used] == '\0' && counts != text && s->scale > 0 && s->scale < INFINITY &&
           s->good >= 0 && s->good <= TD_MOST_COUNT && s->skipped >= 0 &&
           s->skipped <= TD_MOST_COUNT;
}

/* A file without a scaler is of a run in another precision. */
static const td_text_kind text_state = { put_state, read_state,
                                         "which is no loss scale with two counts", true, NULL };

static void list_state(td_checkpoint_part *part, td_part_list *list)
{
    td_scaler *s = (td_scaler *)part;
    s->in_file = td_scaler_now(s);
    (void)list->text(list, "scaler", &text_state, &s->in_file);
}

static td_status take_state(td_checkpoint_part *part)
{
    td_scaler *s = (td_scaler *)part;
    td_scaler_set(s, &s->in_file);
    return TD_OK;
}

/* ---- beginning and end ---- */

td_scaler *td_scaler_new_at(td_scaler_options options, td_site at)
{
    const td_scaler_options *o = &options;
    TD_REQUIRE(o->scale >= 0 && o->growth >= 0 && o->backoff >= 0 && o->patience >= 0, at,
               "td_scaler_new: an option is negative");
    TD_REQUIRE(
        (o->growth == 0 || o->growth > 1) && o->backoff < 1, at,
        "td_scaler_new: growth is %g and must be more than 1; backoff is %g and must be less",
        o->growth, o->backoff);
    td_scaler *s = calloc(1, sizeof *s);
    TD_CHECK_NULL(s != NULL, TD_E_NOMEM, "no memory for a loss scaler");
    s->part = (td_checkpoint_part){ .list = list_state, .loaded = take_state };
    s->options = (td_scaler_options){
        .scale = or_default(o->scale, 65536),
        .growth = or_default(o->growth, 2),
        .backoff = or_default(o->backoff, 0.5),
        .patience = o->patience > 0 ? o->patience : 2000,
    };
    s->first.scale = s->options.scale;
    return s;
}

void td_scaler_free(td_scaler *scaler)
{
    if (scaler != NULL) {
        if (scaler->of != NULL) { /* whose captured steps go on asking: nothing more is skipped */
            td_fill_(scaler->outcome, TD_SCALE_TAKEN);
        }
        td_free(scaler->factor);
        td_free(scaler->outcome);
        td_free(scaler->numbers);
        td_free(scaler->found);
        free(scaler);
    }
}

/* ---- the device's numbers ---- */

static void send(const td_scaler *s, const td_scaler_state *state)
{
    double numbers[TD_SCALE_NUMBERS];
    td_read(s->numbers, numbers, TD_F64);
    numbers[TD_SCALE_FACTOR] = state->scale;
    numbers[TD_SCALE_GOOD] = (double)state->good;
    numbers[TD_SCALE_SKIPS] = (double)state->skipped;
    td_write(s->numbers, numbers, TD_F64);
}

/* Of the latest step. */
static td_scale_outcome outcome_of(const td_scaler *s)
{
    return (td_scale_outcome)td_item(s->outcome);
}

static td_tensor *number(const td_scaler *s, int which)
{
    return td_slice_of_storage(s->numbers, s->numbers->offset + which, TD_SCALAR,
                               s->numbers->stride);
}

static void require_numbers(td_scaler *s, td_device device)
{
    if (s->numbers != NULL) {
        TD_REQUIRE(td_same_device(td_device_of(s->numbers), device), TD_HERE,
                   "td_scaler: the loss or gradients are on %s, and were on %s before",
                   td_device_name(device), td_device_name(td_device_of(s->numbers)));
        return;
    }
    s->numbers = td_zeros(TD_SHAPE(TD_SCALE_NUMBERS), TD_F64, device);
    s->found = td_zeros(TD_SHAPE(1), TD_I32, device);
    if (s->numbers != NULL) {
        s->factor = number(s, TD_SCALE_FACTOR);
        s->outcome = number(s, TD_SCALE_OUTCOME);
    }
    TD_REQUIRE(s->numbers != NULL && s->found != NULL && s->factor != NULL && s->outcome != NULL,
               TD_HERE, "td_scaler: %s", td_last_error());
    send(s, &s->first);
}

/* ---- a step ---- */

td_tensor *td_scaler_loss(td_scaler *scaler, td_tensor *loss)
{
    if (scaler == NULL) {
        return loss;
    }
    require_numbers(scaler, td_device_of(loss));
    return td_mul(loss, td_cast(scaler->factor, loss->dtype));
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

static void unscale_by(td_params *params, const td_tensor *numbers, td_tensor *found)
{
    const td_kernels *kernels = td_kernels_for(found);
    td_fill_(found, 0);
    if (all_have_gradients(params)) {
        kernels->unscale(td_params_flat_grad(params), numbers, found);
        return;
    }
    for (int i = 0; i < td_params_count(params); i++) {
        td_tensor part, *grad = td_params_grad_here(params, i, &part);
        if (grad != NULL) {
            kernels->unscale(grad, numbers, found);
        }
    }
}

static void unscale_gradients(const td_scaler *s, td_params *params)
{
    td_device device = td_device_of(td_params_flat_grad(params));
    if (td_same_device(device, td_device_of(s->numbers))) {
        unscale_by(params, s->numbers, s->found);
        return;
    }
    /* The loss is on a GPU, and the gradients' window is offloaded. */
    td_tensor *numbers = td_clone_as(s->numbers, TD_F64, device);
    td_tensor *found = td_clone_as(s->found, TD_I32, device);
    TD_REQUIRE(numbers != NULL && found != NULL, TD_HERE, "td_scaler_unscale: %s", td_last_error());
    unscale_by(params, numbers, found);
    td_copy_(s->found, found);
    td_free(numbers);
    td_free(found);
}

/* Where ranks have a part of the gradients each, what one finds counts for all. */
static void tell_ranks(const td_scaler *s, const td_params *params)
{
    const td_slicing *slicing = params->slicing;
    if (td_params_sums(params) || slicing != NULL) {
        double found = td_item(s->found);
        td_params_sum(params, &found, 1);
        if (slicing != NULL) {
            slicing->sum(&found, 1, slicing->user);
        }
        td_fill_(s->found, found > 0);
    }
}

bool td_scaler_unscale(td_scaler *scaler, td_params *params)
{
    if (scaler == NULL) {
        return true;
    }
    bool captured = td_recorder_now() != NULL;
    td_scale_rule rule = { .growth = scaler->options.growth,
                           .backoff = scaler->options.backoff,
                           .least = LEAST_SCALE,
                           .most = MOST_SCALE,
                           .patience = scaler->options.patience,
                           .unseen = captured };
    if (scaler->numbers == NULL) { /* no loss has been scaled yet */
        require_numbers(scaler, td_device_of(td_params_flat(params)));
    }
    td_params_follow(params);
    unscale_gradients(scaler, params);
    tell_ranks(scaler, params);
    td_kernels_for(scaler->numbers)->adapt_scale(scaler->numbers, scaler->found, &rule);
    if (captured) {
        TD_REQUIRE(scaler->of == NULL || scaler->of == params, TD_HERE,
                   "td_scaler_unscale: in captured steps a loss scaler is for one model; make one "
                   "for each");
        scaler->of = params;
        TD_REQUIRE(td_params_scale_by(params, scaler->numbers) == TD_OK, TD_HERE,
                   "td_scaler_unscale: %s", td_last_error());
        return true;
    }
    bool taken = outcome_of(scaler) == TD_SCALE_TAKEN;
    if (!taken) {
        td_params_spend(params);
    }
    return taken;
}

td_tensor *td_scaler_outcome(const td_scaler *scaler)
{
    TD_REQUIRE(scaler->outcome != NULL, TD_HERE,
               "td_scaler_outcome: no loss has been scaled yet, so the scaler is on no device");
    return scaler->outcome;
}

bool td_scaler_gives_up(td_scaler *scaler)
{
    return scaler != NULL && scaler->numbers != NULL && outcome_of(scaler) == TD_SCALE_HOPELESS;
}

td_scaler_state td_scaler_now(td_scaler *scaler)
{
    double numbers[TD_SCALE_NUMBERS];
    if (scaler->numbers == NULL) {
        return scaler->first;
    }
    td_read(scaler->numbers, numbers, TD_F64);
    return (td_scaler_state){
        .scale = numbers[TD_SCALE_FACTOR],
        .good = (int64_t)numbers[TD_SCALE_GOOD],
        .skipped = (int64_t)numbers[TD_SCALE_SKIPS],
    };
}

void td_scaler_set(td_scaler *scaler, const td_scaler_state *state)
{
    if (scaler->numbers != NULL) {
        send(scaler, state);
    } else {
        scaler->first = *state;
    }
}
