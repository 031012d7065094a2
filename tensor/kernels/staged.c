/* Brings a kernel's operands into the layout and dtype that it takes. */
#include "tensor/kernels/staged.h"

#include "tensor/kernels/kernels.h"
#include "tensor/storage.h"

void td_wrap(td_tensor *t, td_storage *storage, void *data, td_shape shape, td_dtype dtype,
             td_layout layout, td_device device)
{
    *storage = (td_storage){
        .data = data,
        .bytes = (size_t)td_shape_numel(shape) * td_dtype_size(dtype),
        .refs = 1,
        .device = device,
    };
    *t = (td_tensor){ .ndim = shape.ndim, .dtype = dtype, .storage = storage };
    for (int d = 0; d < shape.ndim; d++) {
        t->shape[d] = shape.dim[d];
    }
    td_layout_strides(device, layout, shape, t->stride);
}

static void no_copy(td_staged *s, td_tensor *t, bool is_output)
{
    s->tensor = s->original = t;
    s->scratch = NULL;
    s->is_output = is_output;
}

static void *make_copy(td_staged *s, td_layout layout, const int64_t *stride, td_dtype dtype,
                       bool read)
{
    const td_tensor *t = s->original;
    td_device device = td_device_of(t);
    s->scratch = td_scratch(device, (size_t)td_numel(t) * td_dtype_size(dtype));
    td_wrap(&s->copy, &s->storage, s->scratch, td_shape_of(t), dtype, layout, device);
    for (int d = 0; stride && d < t->ndim; d++) {
        s->copy.stride[d] = stride[d];
    }
    s->tensor = &s->copy;
    if (read) {
        td_kernels_of(device)->copy(&s->copy, t);
    }
    return s->scratch;
}

/* `original` is not const because outputs are written back; inputs never are. */
static td_tensor *without_const(const td_tensor *t)
{
    return (td_tensor *)(uintptr_t)t;
}

const void *td_stage_in_as(td_staged *s, const td_tensor *t, td_layout layout, td_dtype dtype)
{
    no_copy(s, without_const(t), false);
    if (!t || (td_is_layout(t, layout) && t->dtype == dtype)) {
        return t ? td_ptr(t) : NULL;
    }
    return make_copy(s, layout, NULL, dtype, true);
}

const void *td_stage_in(td_staged *s, const td_tensor *t, td_layout layout)
{
    return td_stage_in_as(s, t, layout, t ? t->dtype : TD_F32);
}

void *td_stage_copy(td_staged *s, const td_tensor *t, td_layout layout, td_dtype dtype)
{
    no_copy(s, without_const(t), false);
    return make_copy(s, layout, NULL, dtype, true);
}

const void *td_stage_in_like(td_staged *s, const td_tensor *t, const td_tensor *like)
{
    no_copy(s, without_const(t), false);
    if (td_same_order(t, like)) {
        return td_ptr(t);
    }
    return make_copy(s, TD_ROW_MAJOR, like->stride, t->dtype, true);
}

void *td_stage_out_as(td_staged *s, td_tensor *t, td_layout layout, td_dtype dtype, bool keep)
{
    no_copy(s, t, true);
    if (!t || (td_is_layout(t, layout) && t->dtype == dtype)) {
        return t ? td_ptr(t) : NULL;
    }
    return make_copy(s, layout, NULL, dtype, keep);
}

void *td_stage_out(td_staged *s, td_tensor *t, td_layout layout, bool keep)
{
    return td_stage_out_as(s, t, layout, t ? t->dtype : TD_F32, keep);
}

void td_stage_end_all(td_staged *const *list)
{
    for (; *list != NULL; list++) {
        const td_staged *s = *list;
        if (s->scratch == NULL) {
            continue;
        }
        td_tensor *t = s->original;
        if (s->is_output) {
            td_kernels_for(t)->copy(t, &s->copy);
        }
        td_scratch_free(td_device_of(t), s->scratch);
    }
}
