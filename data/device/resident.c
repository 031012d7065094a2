/* A batch maker for a set whose images fit on the device: each batch is cut out there. */
#include "data/device/makers.h"
#include "data/images_memory.h"
#include "tensor/hooks.h"
#include "tensor/kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct resident {
    td_batch_maker base;
    const td_images_memory *images;
    td_tensor *pixels;    /* u8 [length,3,32,32] */
    td_tensor *values;    /* f32 [3,256]: what a byte becomes */
    int sent;             /* transforms of the images when values were sent */
    td_picture_cut *cuts; /* of the batch that was drawn last */
    int64_t drawn;        /* its samples */
    td_batch_memory batch;
} resident;

/* Another transform may have been set. */
static void send_values(resident *r)
{
    if (r->sent != r->images->transforms) {
        r->sent = r->images->transforms;
        td_write(r->values, r->images->values.of, TD_F32);
    }
}

static void free_resident(td_batch_maker *m)
{
    resident *r = (resident *)m;
    td_batch_memory_free(&r->batch);
    td_free(r->values);
    td_free(r->pixels);
    free(r->cuts);
    free(r);
}

static void resident_start(td_batch_maker *m, const int64_t *order, int64_t samples, uint64_t epoch,
                           int64_t first)
{
    (void)first;
    td_batch_plan_fit(&m->plan, samples);
    m->order = order;
    m->epoch = epoch;
}

static td_status resident_take(td_batch_maker *m, int64_t batch, td_tensor **x, td_tensor **y)
{
    resident *r = (resident *)m;
    const int64_t *index = m->order + batch * m->plan.batch_size;
    r->drawn = td_batch_samples(&m->plan, batch);
    for (int64_t i = 0; i < r->drawn; i++) {
        td_picture drawn = td_augment_draw(&r->images->transform, m->epoch, (uint64_t)index[i]);
        r->cuts[i] = (td_picture_cut){
            .picture = index[i],
            .down = drawn.down,
            .right = drawn.right,
            .label = r->images->labels[index[i]],
            .flip = drawn.flip,
            .reflect = drawn.reflect,
        };
    }
    send_values(r);
    td_batch_memory_of(&r->batch, r->drawn, x, y);
    return TD_OK;
}

static void copy_cuts(void *user, void *numbers)
{
    const resident *r = user;
    if (numbers != r->cuts) {
        memcpy(numbers, r->cuts, (size_t)r->drawn * sizeof *r->cuts);
    }
}

static void resident_make(td_batch_maker *m)
{
    resident *r = (resident *)m;
    td_tensor *x, *y;
    td_batch_memory_of(&r->batch, r->drawn, &x, &y);
    size_t bytes = (size_t)r->drawn * sizeof(td_picture_cut);
    const td_picture_cut *cuts = td_step_numbers(r->cuts, bytes, copy_cuts, r);
    td_kernels_of(m->plan.device)->pictures(x, y, r->pixels, r->values, cuts);
}

static const td_batch_maker_type resident_type = {
    .start = resident_start, .take = resident_take, .make = resident_make, .free = free_resident
};

td_batch_maker *td_resident_new(const td_batch_plan *plan)
{
    resident *r = calloc(1, sizeof *r);
    td_picture_cut *cuts = calloc((size_t)plan->batch_size, sizeof *cuts);
    if (r == NULL || cuts == NULL) {
        free(r);
        free(cuts);
        td_fail(TD_E_NOMEM, "loader: no memory");
        return NULL;
    }
    r->base = (td_batch_maker){ .type = &resident_type, .plan = *plan };
    r->images = td_images_of(plan->dataset);
    r->cuts = cuts;
    r->sent = r->images->transforms;
    int64_t length = plan->dataset->length;
    r->pixels = td_from(r->images->pixels,
                        TD_SHAPE(length, TD_PICTURE_CHANNELS, TD_PICTURE_SIDE, TD_PICTURE_SIDE),
                        TD_U8, plan->device);
    r->values = r->pixels != NULL
                    ? td_from(r->images->values.of, TD_SHAPE(TD_PICTURE_CHANNELS, 256), TD_F32,
                              plan->device)
                    : NULL;
    if (r->values == NULL || !td_batch_memory_make(&r->batch, plan, plan->device)) {
        free_resident(&r->base);
        td_fail_context(TD_E_NOMEM, "loader: %lld images on %s", (long long)length,
                        td_device_name(plan->device));
        return NULL;
    }
    return &r->base;
}
