#include "data/device/resident.h"

#include "data/images_memory.h"
#include "tensor/hooks.h"
#include "tensor/kernels.h"

#include <stdlib.h>
#include <string.h>

struct td_resident {
    const td_images_memory *images;
    td_tensor *pixels;    /* u8 [length,3,32,32] */
    td_tensor *values;    /* f32 [3,256]: what a byte becomes */
    td_byte_values sent;  /* what is in values */
    td_picture_cut *cuts; /* of the batch that was drawn last */
    int64_t drawn;        /* its samples */
    td_device_batch *batch;
};

static bool same_values(const td_byte_values *a, const td_byte_values *b)
{
    bool same = true;
    for (int c = 0; c < TD_PICTURE_CHANNELS; c++) {
        for (int i = 0; i < 256 && same; i++) {
            same = a->of[c][i] == b->of[c][i];
        }
    }
    return same;
}

/* The transform may have been set anew. */
static void send_values(td_resident *r)
{
    if (!same_values(&r->sent, &r->images->values)) {
        r->sent = r->images->values;
        td_write(r->values, r->sent.of, TD_F32);
    }
}

static bool send_pictures(td_resident *r, int64_t length, td_device device)
{
    r->pixels = td_from(r->images->pixels,
                        TD_SHAPE(length, TD_PICTURE_CHANNELS, TD_PICTURE_SIDE, TD_PICTURE_SIDE),
                        TD_U8, device);
    if (r->pixels == NULL) {
        return false;
    }
    r->sent = r->images->values;
    r->values = td_from(r->sent.of, TD_SHAPE(TD_PICTURE_CHANNELS, 256), TD_F32, device);
    return r->values != NULL;
}

td_resident *td_resident_new(const td_dataset *dataset, td_device device, int64_t batch_size,
                             int64_t tail)
{
    const td_images_memory *images = td_images_of(dataset);
    if (images == NULL) {
        td_fail(TD_E_UNSUPPORTED, "loader: a %s has no pictures in memory", dataset->vtable->kind);
        return NULL;
    }
    td_resident *r = calloc(1, sizeof *r);
    if (r == NULL) {
        td_fail(TD_E_NOMEM, "loader: no memory");
        return NULL;
    }
    r->images = images;
    r->cuts = calloc((size_t)batch_size, sizeof *r->cuts);
    if (r->cuts == NULL) {
        td_fail(TD_E_NOMEM, "loader: no memory");
    } else if (send_pictures(r, dataset->length, device)) {
        r->batch = td_device_batch_new(dataset, device, batch_size, tail);
    }
    if (r->batch == NULL) {
        td_resident_free(r);
        td_fail_context(TD_E_NOMEM, "loader: %lld pictures on %s", (long long)dataset->length,
                        td_device_name(device));
        return NULL;
    }
    return r;
}

void td_resident_free(td_resident *r)
{
    if (r == NULL) {
        return;
    }
    td_device_batch_free(r->batch);
    td_free(r->values);
    td_free(r->pixels);
    free(r->cuts);
    free(r);
}

void td_resident_draw(td_resident *r, const int64_t *index, int64_t n, uint64_t epoch,
                      td_tensor **x, td_tensor **y)
{
    for (int64_t i = 0; i < n; i++) {
        td_picture drawn = td_augment_draw(&r->images->transform, epoch, (uint64_t)index[i]);
        r->cuts[i] = (td_picture_cut){
            .picture = index[i],
            .down = drawn.down,
            .right = drawn.right,
            .label = r->images->labels[index[i]],
            .flip = drawn.flip,
            .reflect = drawn.reflect,
        };
    }
    r->drawn = n;
    send_values(r);
    td_device_batch_tensors(r->batch, n, x, y);
}

static void copy_cuts(void *user, void *numbers)
{
    const td_resident *r = user;
    if (numbers != r->cuts) {
        memcpy(numbers, r->cuts, (size_t)r->drawn * sizeof *r->cuts);
    }
}

void td_resident_make(td_resident *r)
{
    td_tensor *x, *y;
    td_device_batch_tensors(r->batch, r->drawn, &x, &y);
    size_t bytes = (size_t)r->drawn * sizeof(td_picture_cut);
    const td_picture_cut *cuts = td_step_numbers(r->cuts, bytes, copy_cuts, r);
    td_kernels_of(td_device_of(x))->pictures(x, y, r->pixels, r->values, cuts);
}
