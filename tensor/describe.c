/* Tensors, shapes and sizes in messages. */
#include "tensor/system/number.h"
#include "tensor/storage.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { RING_SLOTS = 8, SLOT_BYTES = 256 };

/* The next of 8 buffers of this thread. */
static char *next_slot(void)
{
    static _Thread_local char ring[RING_SLOTS][SLOT_BYTES];
    static _Thread_local unsigned next;
    return ring[next++ % RING_SLOTS];
}

/* Writes "[32,3,8,8]" into a buffer that is long enough for any shape. Returns its end. */
static char *put_shape(char *text, int ndim, const int64_t *size)
{
    *text++ = '[';
    for (int d = 0; d < ndim && d < TD_MAX_DIMS; d++) {
        text += sprintf(text, "%s%" PRId64, d > 0 ? "," : "", size[d]);
    }
    return stpcpy(text, "]");
}

const char *td_describe_shape(td_shape shape)
{
    char *text = next_slot();
    put_shape(text, shape.ndim, shape.dim);
    return text;
}

static const char *tensor_describe(const td_tensor *t, const char *prefix, const char *name,
                                   const char *suffix)
{
    char *text = next_slot();
    /* Short enough that shape (8 sizes of 20 digits), dtype and device always fit. */
    char *end = text + snprintf(text, SLOT_BYTES, "%s%.40s%s%s", prefix, name, suffix,
                                td_dtype_name(t->dtype));
    end = put_shape(end, t->ndim, t->shape);
    /* A stale tensor's storage may be gone; its device is not told then. */
    bool has_device = t->step == 0 || t->step == td_step_number();
    if (has_device) {
        sprintf(end, " %s", td_device_name(t->storage->device));
    }
    return text;
}

const char *td_describe(const td_tensor *t)
{
    return t != NULL ? tensor_describe(t, "", "", "") : "NULL tensor";
}

const char *td_label(const td_tensor *t)
{
    if (t == NULL) {
        return "NULL tensor";
    }
    return t->name != NULL ? tensor_describe(t, "'", t->name, "' ")
                           : tensor_describe(t, "a tensor ", "", "");
}

const char *td_describe_bytes(size_t bytes)
{
    static const char *const unit[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    char *text = next_slot();
    double value = (double)bytes;
    size_t u = 0;
    while (value >= 1024.0 && u + 1 < sizeof unit / sizeof *unit) {
        value /= 1024.0;
        u++;
    }
    td_snprintf(text, SLOT_BYTES, u == 0 ? "%.0f %s" : "%.1f %s", value, unit[u]);
    return text;
}
