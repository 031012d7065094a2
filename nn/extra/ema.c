/* An exponential moving average of a model's weights. */
#include "nn/extra/average.h"
#include "nn/optim/skips.h"
#include "nn/io/records.h"
#include "tensor/hooks.h"
#include "tensor/kernels/kernels.h"
#include "tensor/kernels/scaling.h"
#include "tensor/storage.h"

#include <stdlib.h>

struct td_ema {
    td_checkpoint_part part; /* first: checkpoints see it alone */
    int64_t in_file;         /* the updates that are saved or loaded */
    td_ema_options options;
    td_average of;     /* the averages */
    td_tensor *counts; /* its first number: updates so far */
    td_skips skips;    /* updates that the device has skipped, and that number has not */
    td_tensor *spare;  /* for swapping */
    bool swapped;
};

enum { SWAP_ELEMENTS = 1 << 16 }; /* that change places at a time: they stay in the cache */

/* ---- beginning and end ---- */

/* Of updates. The count is with the parameters' state, of which a rank that leaves early gets the
 * latest. */
static int64_t *ema_count_of(const td_ema *ema)
{
    return td_data_rw(ema->counts);
}

static bool make_averages(td_ema *e)
{
    if (!td_average_begin(&e->of, e->options.model)) {
        return false;
    }
    const td_tensor *flat = e->of.flat;
    e->counts = td_params_new_numbers(e->of.params, td_params_count(e->of.params), TD_I64);
    e->spare = td_zeros(TD_SHAPE(SWAP_ELEMENTS), flat->dtype, td_device_of(flat));
    return e->counts != NULL && e->spare != NULL;
}

static const char *unready(const td_checkpoint_part *part)
{
    return ((const td_ema *)part)->swapped ? "the model holds the averages at the moment; "
                                             "td_ema_swap them back first, or leave "
                                             "out .ema to save what is to be used"
                                           : NULL;
}

static void list_averages(td_checkpoint_part *part, td_part_list *list)
{
    td_ema *e = (td_ema *)part;
    td_text_kind updates = td_text_count;
    updates.missing = "averages of the weights (" TD_KEY_EMA "*)";
    e->in_file = td_ema_updates(e);
    if (!list->text(list, TD_KEY_EMA_UPDATES, &updates, &e->in_file)) {
        return;
    }
    td_records_flat(list, TD_KEY_EMA, e->of.params, e->of.flat);
    for (int i = 0; i < e->of.buffer_count; i++) {
        const td_average_buffer *b = &e->of.buffers[i];
        td_records_buffer(list, TD_KEY_EMA, b->name, b->value, b->copy);
    }
}

static td_status take_averages(td_checkpoint_part *part)
{
    td_ema *e = (td_ema *)part;
    *ema_count_of(e) = e->in_file;
    (void)td_skips_settle(&e->skips, e->of.params);
    return TD_OK;
}

td_ema *td_ema_new_at(td_ema_options options, td_site at)
{
    td_module *model = options.model;
    TD_REQUIRE(model != NULL, at, "td_ema_new: the model is NULL");
    TD_REQUIRE(model->dtype == TD_F32 || model->dtype == TD_F64, at,
               "td_ema_new: the model is %s: averages are of f32 or f64",
               td_dtype_name(model->dtype));
    TD_REQUIRE(options.decay >= 0.0 && options.decay < 1.0, at,
               "td_ema_new: the decay is %g; it must lie between 0 and 1", options.decay);
    td_ema *e = calloc(1, sizeof *e);
    TD_CHECK_NULL(e != NULL, TD_E_NOMEM, "no memory for an average of the weights");
    e->part =
        (td_checkpoint_part){ .unready = unready, .list = list_averages, .loaded = take_averages };
    e->options = options;
    e->options.decay = td_or_usual(options.decay, 0.9999);
    if (!make_averages(e)) {
        td_ema_free(e);
        td_fail(TD_E_NOMEM, "no memory for an average of %lld weights: %s",
                (long long)td_parameter_count(model), td_last_reason());
        return NULL;
    }
    (void)td_skips_settle(&e->skips, e->of.params);
    return e;
}

void td_ema_free(td_ema *ema)
{
    if (ema == NULL) {
        return;
    }
    if (ema->of.params != NULL) {
        td_params_drop_state(ema->of.params, ema->counts);
    }
    td_average_end(&ema->of);
    td_free(ema->spare);
    free(ema);
}

/* ---- updates ---- */

int64_t td_ema_updates(td_ema *ema)
{
    return *ema_count_of(ema) -= td_skips_settle(&ema->skips, ema->of.params);
}

static double decay_after(const td_ema *ema, int64_t updates)
{
    double most = ema->options.decay;
    return ema->options.warmup ? td_average_decay(most, (double)updates) : most;
}

double td_ema_decay(td_ema *ema)
{
    return decay_after(ema, td_ema_updates(ema));
}

/* The slices of the next update, which is counted: the parameters', and each buffer's. */
static void ema_fill_slices(void *user, void *numbers)
{
    td_ema *e = user;
    td_optim_slice *slices = numbers;
    int64_t updates = *ema_count_of(e);
    double decay = decay_after(e, updates);
    int count = td_average_fill(&e->of, slices, decay);
    bool captured = slices != e->of.slices;
    for (int i = 0; i < count && captured; i++) {
        td_skips_ask(&e->skips, e->of.params, &slices[i], updates + 1);
        slices[i].device.average = e->options.warmup ? e->options.decay : 0.0;
    }
    e->skips.counted = e->skips.counted || captured;
    e->skips.begun = true;
    ++*ema_count_of(e);
}

static void require_in_place(const td_ema *ema, const char *what)
{
    TD_REQUIRE(!ema->swapped, TD_HERE,
               "%s: the model holds the averages at the moment; td_ema_swap them back first", what);
}

void td_ema_update(td_ema *ema)
{
    require_in_place(ema, "td_ema_update");
    *ema_count_of(ema) -= td_skips_step(&ema->skips, ema->of.params);
    td_average_update(&ema->of, ema_fill_slices, ema, false, "td_ema_update");
}

/* ---- swapping ---- */

static void exchange(const td_ema *ema, td_tensor *a, td_tensor *b)
{
    int64_t count = td_numel(a);
    td_begin_write(a, "td_ema_swap", TD_HERE); /* who has kept something of them must know */
    td_begin_write(b, "td_ema_swap", TD_HERE);
    for (int64_t at = 0; at < count; at += SWAP_ELEMENTS) {
        int64_t n = count - at < SWAP_ELEMENTS ? count - at : SWAP_ELEMENTS;
        td_tensor one = td_params_part(a, at, n), other = td_params_part(b, at, n);
        td_tensor spare = td_params_part(ema->spare, 0, n);
        td_copy_across(&spare, &one); /* which may be on another device (.offload of td_ddp) */
        td_copy_across(&one, &other);
        td_copy_across(&other, &spare);
    }
}

void td_ema_swap(td_ema *ema)
{
    td_params_meet(ema->of.params);
    exchange(ema, td_params_flat(ema->of.params), ema->of.flat);
    td_params_meet(ema->of.params);
    for (int i = 0; i < ema->of.buffer_count; i++) {
        exchange(ema, ema->of.buffers[i].value, ema->of.buffers[i].copy);
    }
    ema->swapped = !ema->swapped;
}

bool td_ema_swapped(const td_ema *ema)
{
    return ema->swapped;
}
