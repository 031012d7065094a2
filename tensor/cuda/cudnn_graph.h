/* cuDNN's graph interface from C: its functions, opened at run time, and graphs of one convolution.
 *
 * A graph is described by attribute after attribute; an engine is chosen for it and finalized into
 * a plan, which can then be run on any memory. All of it but running works without a GPU, for a
 * device that is described by a JSON text: so tests make every plan that models need. */
#pragma once

#include "tensor/cuda/products.h"

#include <cudnn.h>

#define TD_CUDNN_FUNCTIONS(X)                                                                      \
    X(cudnnGetVersion)                                                                             \
    X(cudnnCreate)                                                                                 \
    X(cudnnSetStream)                                                                              \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

typedef struct td_cudnn {
#define TD_CUDNN_POINTER(f) __typeof__(&(f)) f;
    TD_CUDNN_FUNCTIONS(TD_CUDNN_POINTER)
#undef TD_CUDNN_POINTER
    void *library;
} td_cudnn;

/* Opens cuDNN when it is asked first; NULL with td_last_error(): what is missing. */
const td_cudnn *td_cudnn_open(void);

/* For whom plans are made: a handle (a GPU that is there) or a device description. */
typedef struct td_cudnn_target {
    const td_cudnn *lib;
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t description; /* where handle is NULL */
} td_cudnn_target;

/* Reads a device description (JSON). NULL with td_last_error(). */
cudnnBackendDescriptor_t td_cudnn_describe(const td_cudnn *lib, const char *json);
/* The other way: of the GPU that a handle belongs to. Bytes written, 0 on failure. */
size_t td_cudnn_description(const td_cudnn *lib, int device, char *json, size_t size);

/* Descriptors that are made together and go together; after a failure the rest does nothing. */
enum { TD_CUDNN_MAX_DESCRIPTORS = 24 };
typedef struct td_cudnn_build {
    const td_cudnn *lib;
    cudnnBackendDescriptor_t made[TD_CUDNN_MAX_DESCRIPTORS];
    int count;
    cudnnStatus_t status; /* of the first failure */
    char message[256];
} td_cudnn_build;

cudnnBackendDescriptor_t td_cudnn_make(td_cudnn_build *b, cudnnBackendDescriptorType_t type);
void td_cudnn_set(td_cudnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void *values);
void td_cudnn_finish(td_cudnn_build *b, cudnnBackendDescriptor_t d, const char *what);
void td_cudnn_end(td_cudnn_build *b); /* destroys them all */

/* What a plan calls its tensors. */
enum { TD_CUDNN_X = 1, TD_CUDNN_W, TD_CUDNN_Y, TD_CUDNN_BIAS, TD_CUDNN_SUM };

/* The operation graph of a convolution; NULL and b->message on failure. It lives as long as b. */
cudnnBackendDescriptor_t td_cudnn_conv_graph(td_cudnn_build *b, const td_cudnn_target *target,
                                             const td_cuda_conv *conv);
