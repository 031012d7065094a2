/* Opens cuDNN, and describes graphs of one convolution to it. */
#include "tensor/cuda/cudnn_graph.h"

#include "tensor/cuda/library.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- the library ---- */

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
static const char file[] = "libcudnn.so." TEXT(CUDNN_MAJOR);

static td_cudnn cudnn;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static td_status open_cudnn(void)
{
    static const char *const names[] = {
#define NAME(f) #f,
        TD_CUDNN_FUNCTIONS(NAME)
#undef NAME
    };
    void *const pointers[] = {
#define POINTER(f) &cudnn.f,
        TD_CUDNN_FUNCTIONS(POINTER)
#undef POINTER
    };
    void *library;
    TD_TRY(td_cuda_library_open("cuDNN", file, &library));
    TD_TRY(td_cuda_library_bind(library, file, names, pointers, sizeof names / sizeof names[0]));
    cudnn.library = library;
    return TD_OK;
}

const td_cudnn *td_cudnn_open(void)
{
    pthread_mutex_lock(&lock);
    bool good = cudnn.library != NULL || open_cudnn() == TD_OK;
    pthread_mutex_unlock(&lock);
    return good ? &cudnn : NULL;
}

/* ---- descriptors ---- */

static void check(td_cudnn_build *b, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS || b->status != CUDNN_STATUS_SUCCESS) {
        return;
    }
    char detail[160] = "";
    b->lib->cudnnGetLastErrorString(detail, sizeof detail);
    b->status = status;
    snprintf(b->message, sizeof b->message, "%s: %s %s", what, b->lib->cudnnGetErrorString(status),
             detail);
}

cudnnBackendDescriptor_t td_cudnn_make(td_cudnn_build *b, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (b->status != CUDNN_STATUS_SUCCESS) {
        return NULL;
    }
    TD_REQUIRE(b->count < TD_CUDNN_MAX_DESCRIPTORS, TD_HERE, "a cuDNN graph of too many parts");
    check(b, b->lib->cudnnBackendCreateDescriptor(type, &d), "making a descriptor");
    if (d != NULL) {
        b->made[b->count++] = d;
    }
    return d;
}

void td_cudnn_set(td_cudnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (b->status == CUDNN_STATUS_SUCCESS) {
        char what[40];
        snprintf(what, sizeof what, "attribute %d", (int)name);
        check(b, b->lib->cudnnBackendSetAttribute(d, name, type, count, values), what);
    }
}

void td_cudnn_finish(td_cudnn_build *b, cudnnBackendDescriptor_t d, const char *what)
{
    if (b->status == CUDNN_STATUS_SUCCESS) {
        check(b, b->lib->cudnnBackendFinalize(d), what);
    }
}

void td_cudnn_end(td_cudnn_build *b)
{
    while (b->count > 0) {
        b->lib->cudnnBackendDestroyDescriptor(b->made[--b->count]);
    }
}

cudnnBackendDescriptor_t td_cudnn_describe(const td_cudnn *lib, const char *json)
{
    td_cudnn_build b = { .lib = lib };
    cudnnBackendDescriptor_t d = td_cudnn_make(&b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    td_cudnn_set(&b, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                 (int64_t)strlen(json), json);
    td_cudnn_finish(&b, d, "the device description");
    if (b.status != CUDNN_STATUS_SUCCESS) {
        td_cudnn_end(&b);
        (void)td_fail(TD_E_DEVICE, "cuDNN: %s", b.message);
        return NULL;
    }
    return d;
}

size_t td_cudnn_description(const td_cudnn *lib, int device, char *json, size_t size)
{
    td_cudnn_build b = { .lib = lib };
    cudnnBackendDescriptor_t d = td_cudnn_make(&b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    int32_t id = device;
    td_cudnn_set(&b, d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id);
    td_cudnn_finish(&b, d, "the device description");
    int64_t bytes = 0;
    if (b.status == CUDNN_STATUS_SUCCESS) {
        check(&b,
              lib->cudnnBackendGetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                            CUDNN_TYPE_CHAR, (int64_t)size, &bytes, json),
              "the device description");
    }
    if (b.status != CUDNN_STATUS_SUCCESS) {
        (void)td_fail(TD_E_DEVICE, "cuDNN: %s", b.message);
        bytes = 0;
    }
    td_cudnn_end(&b);
    return (size_t)bytes;
}

/* ---- the parts of a convolution's graph ---- */

typedef cudnnBackendDescriptor_t part;

static void set_part(td_cudnn_build *b, part d, cudnnBackendAttributeName_t name, part value)
{
    td_cudnn_set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static cudnnDataType_t cudnn_type_of(td_dtype dtype)
{
    switch (dtype) {
    case TD_BF16:
        return CUDNN_DATA_BFLOAT16;
    case TD_F16:
        return CUDNN_DATA_HALF;
    case TD_F64:
        return CUDNN_DATA_DOUBLE;
    default:
        return CUDNN_DATA_FLOAT;
    }
}

/* What sums are made in. */
static cudnnDataType_t sum_type(const td_cuda_conv *c)
{
    return c->dtype == TD_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

/* A tensor [n,c,h,w] that lies as NHWC; virtual: it exists inside of the graph only. */
static part tensor(td_cudnn_build *b, int64_t id, cudnnDataType_t type, const int64_t *shape,
                   bool is_virtual)
{
    part d = td_cudnn_make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t c = shape[1], h = shape[2], w = shape[3];
    int64_t stride[4] = { c * h * w, 1, c * w, c };
    int64_t alignment = 16;
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    td_cudnn_finish(b, d, "a tensor");
    return d;
}

static part window(td_cudnn_build *b, const td_cuda_conv *c)
{
    part d = td_cudnn_make(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    int64_t dims = 2, pad[2], stride[2], dilation[2];
    for (int i = 0; i < 2; i++) {
        pad[i] = c->pad[i];
        stride[i] = c->stride[i];
        dilation[i] = c->dilation[i];
    }
    cudnnDataType_t compute = sum_type(c);
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    td_cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    td_cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    td_cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    td_cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
    td_cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
    td_cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    td_cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    td_cudnn_finish(b, d, "the convolution");
    return d;
}

/* The three passes: the same parts under different names. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, window, alpha, beta;
} passes[] = {
    [TD_CUDA_CONV_FORWARD] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA },
    [TD_CUDA_CONV_BACKWARD_DATA] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA },
    [TD_CUDA_CONV_BACKWARD_WEIGHTS] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA },
};

static part convolution(td_cudnn_build *b, const td_cuda_conv *c, part x, part w, part y)
{
    part d = td_cudnn_make(b, passes[c->pass].type);
    double alpha = 1.0, beta = c->accumulate ? 1.0 : 0.0;
    set_part(b, d, passes[c->pass].x, x);
    set_part(b, d, passes[c->pass].w, w);
    set_part(b, d, passes[c->pass].y, y);
    set_part(b, d, passes[c->pass].window, window(b, c));
    td_cudnn_set(b, d, passes[c->pass].alpha, CUDNN_TYPE_DOUBLE, 1, &alpha);
    td_cudnn_set(b, d, passes[c->pass].beta, CUDNN_TYPE_DOUBLE, 1, &beta);
    td_cudnn_finish(b, d, "a convolution's pass");
    return d;
}

static part addition(td_cudnn_build *b, const td_cuda_conv *c, part x, part bias, part y)
{
    part mode = td_cudnn_make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnnPointwiseMode_t add = CUDNN_POINTWISE_ADD;
    cudnnDataType_t compute = sum_type(c);
    td_cudnn_set(b, mode, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &add);
    td_cudnn_set(b, mode, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    td_cudnn_finish(b, mode, "an addition");
    part d = td_cudnn_make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_part(b, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
    set_part(b, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_part(b, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias);
    set_part(b, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    td_cudnn_finish(b, d, "an addition");
    return d;
}

cudnnBackendDescriptor_t td_cudnn_conv_graph(td_cudnn_build *b, const td_cudnn_target *target,
                                             const td_cuda_conv *c)
{
    cudnnDataType_t type = cudnn_type_of(c->dtype);
    int64_t in[4] = { c->n, c->ic, c->ih, c->iw }, out[4] = { c->n, c->oc, c->oh, c->ow };
    int64_t filter[4] = { c->oc, c->ic / c->groups, c->kh, c->kw },
            channels[4] = { 1, c->oc, 1, 1 };
    part x = tensor(b, TD_CUDNN_X, type, in, false);
    part w = tensor(b, TD_CUDNN_W, type, filter, false);
    part y = tensor(b, TD_CUDNN_Y, type, out, false);
    part operations[2];
    int count = 0;
    if (c->bias) {
        part sum = tensor(b, TD_CUDNN_SUM, sum_type(c), out, true);
        part bias = tensor(b, TD_CUDNN_BIAS, type, channels, false);
        operations[count++] = convolution(b, c, x, w, sum);
        operations[count++] = addition(b, c, sum, bias, y);
    } else {
        operations[count++] = convolution(b, c, x, w, y);
    }
    part graph = td_cudnn_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    td_cudnn_set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                 operations);
    if (target->handle != NULL) {
        td_cudnn_set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                     &target->handle);
    }
    td_cudnn_finish(b, graph, "the graph");
    return b->status == CUDNN_STATUS_SUCCESS ? graph : NULL;
}
