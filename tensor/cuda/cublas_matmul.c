/* Matrix products by cuBLASLt. It counts columns first: a row-major matrix is, to it, the
 * transposed one, so c = a b is asked for as c^T = b^T a^T. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/library.h"
#include "tensor/cuda/products.h"
#include "tensor/cuda/vendor.h"
#include "tensor/system/text.h"

#include <cublasLt.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library ---- */

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
static const char file[] = "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR);

#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate)                                                                              \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)                                                            \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)

static struct {
#define POINTER(f) __typeof__(&(f)) f;
    FUNCTIONS(POINTER)
#undef POINTER
    bool opened;
} lt;

static td_status open_library(void)
{
    static const char *const names[] = {
#define NAME(f) #f,
        FUNCTIONS(NAME)
#undef NAME
    };
    void *const pointers[] = {
#define ADDRESS(f) &lt.f,
        FUNCTIONS(ADDRESS)
#undef ADDRESS
    };
    void *library;
    TD_TRY(td_cuda_library_open("cuBLASLt", file, &library));
    return td_cuda_library_bind(library, file, names, pointers, sizeof names / sizeof names[0]);
}

/* ---- products that have been met ---- */

typedef struct product {
    td_cuda_product shape;
    bool bias;
    bool possible; /* cuBLASLt has a way */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    struct product *next;
} product;

enum { BUCKETS = 256 };
static struct gpu {
    cublasLtHandle_t handle; /* NULL: not yet */
    product *products[BUCKETS];
} gpus[TD_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool good(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS;
}

static cudaDataType_t cublas_type_of(td_dtype dtype)
{
    switch (dtype) {
    case TD_BF16:
        return CUDA_R_16BF;
    case TD_F16:
        return CUDA_R_16F;
    case TD_F64:
        return CUDA_R_64F;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_of(const td_cuda_product *p)
{
    if (p->ab_dtype == TD_F64) {
        return CUBLAS_COMPUTE_64F;
    }
    return p->ab_dtype == TD_F32 && p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* A matrix of rows x columns in column-major order; batches follow each other at batch_stride. */
static bool make_layout(cublasLtMatrixLayout_t *layout, td_dtype dtype, int64_t rows,
                        int64_t columns, int64_t ld, int64_t batch, int64_t batch_stride)
{
    if (!good(lt.cublasLtMatrixLayoutCreate(layout, cublas_type_of(dtype), (uint64_t)rows,
                                            (uint64_t)columns, ld))) {
        return false;
    }
    int32_t count = (int32_t)batch;
    return good(lt.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                    &count, sizeof count)) &&
           good(lt.cublasLtMatrixLayoutSetAttribute(*layout,
                                                    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                    &batch_stride, sizeof batch_stride));
}

/* b and a change places. */
static bool make_layouts(product *p)
{
    const td_cuda_product *s = &p->shape;
    return make_layout(&p->b, s->ab_dtype, s->b_t ? s->k : s->n, s->b_t ? s->n : s->k, s->b_ld,
                       s->batch, s->b_batch) &&
           make_layout(&p->a, s->ab_dtype, s->a_t ? s->m : s->k, s->a_t ? s->k : s->m, s->a_ld,
                       s->batch, s->a_batch) &&
           make_layout(&p->c, s->c_dtype, s->n, s->m, s->c_ld, s->batch, s->c_batch);
}

static bool set_operation(product *p, cublasLtMatmulDescAttributes_t name, const void *value,
                          size_t bytes)
{
    return good(lt.cublasLtMatmulDescSetAttribute(p->operation, name, value, bytes));
}

static bool make_operation(product *p)
{
    const td_cuda_product *s = &p->shape;
    cudaDataType_t scale = s->ab_dtype == TD_F64 ? CUDA_R_64F : CUDA_R_32F;
    if (!good(lt.cublasLtMatmulDescCreate(&p->operation, compute_of(s), scale))) {
        return false;
    }
    cublasOperation_t left = s->b_t ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t right = s->a_t ? CUBLAS_OP_T : CUBLAS_OP_N;
    bool fine = set_operation(p, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left) &&
                set_operation(p, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right);
    if (fine && p->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        int32_t type = (int32_t)cublas_type_of(s->c_dtype);
        const void *somewhere = (const void *)(uintptr_t)256; /* aligned, as every bias is */
        fine = set_operation(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
               set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type) &&
               set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &somewhere, sizeof somewhere);
    }
    return fine;
}

/* The heuristic's first: no split sums that are rounded on the way, so equal calls give equal bits.
 */
static bool cublas_choose(struct gpu *g, product *p)
{
    cublasLtMatmulPreference_t wish = NULL;
    if (!good(lt.cublasLtMatmulPreferenceCreate(&wish))) {
        return false;
    }
    size_t most = TD_VENDOR_WORKSPACE;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    /* Less than 16 counts as none: more would let the choice, and with it the bits, depend on where
     * memory happens to lie. */
    uint32_t alignment = p->shape.aligned ? 16 : (uint32_t)td_dtype_size(p->shape.ab_dtype);
    struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } wishes[] = {
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most },
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment },
    };
    bool fine = true;
    for (size_t i = 0; fine && i < sizeof wishes / sizeof wishes[0]; i++) {
        fine = good(lt.cublasLtMatmulPreferenceSetAttribute(wish, wishes[i].name, wishes[i].value,
                                                            wishes[i].bytes));
    }
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    fine = fine &&
           good(lt.cublasLtMatmulAlgoGetHeuristic(g->handle, p->operation, p->b, p->a, p->c, p->c,
                                                  wish, 1, &found, &count)) &&
           count == 1 && good(found.state);
    if (fine) {
        p->algorithm = found.algo;
        p->workspace = found.workspaceSize;
    }
    lt.cublasLtMatmulPreferenceDestroy(wish);
    return fine;
}

/* ---- the table of products ---- */

static bool same_shape(const td_cuda_product *a, const td_cuda_product *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->batch == b->batch &&
           a->a_ld == b->a_ld && a->b_ld == b->b_ld && a->c_ld == b->c_ld &&
           a->a_batch == b->a_batch && a->b_batch == b->b_batch && a->c_batch == b->c_batch &&
           a->a_t == b->a_t && a->b_t == b->b_t && a->ab_dtype == b->ab_dtype &&
           a->c_dtype == b->c_dtype && a->tf32 == b->tf32 && a->adds == b->adds &&
           a->aligned == b->aligned;
}

static unsigned cublas_bucket_of(const td_cuda_product *s)
{
    uint64_t h = (uint64_t)s->ab_dtype * 8 + (uint64_t)s->a_t * 2 + (uint64_t)s->b_t;
    const int64_t numbers[] = { s->m, s->n, s->k, s->batch, s->a_ld, s->b_ld };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        h = (h ^ (uint64_t)numbers[i]) * 0x9e3779b97f4a7c15u;
    }
    return (unsigned)(h >> 56) % BUCKETS;
}

static product *product_of(struct gpu *g, const td_cuda_product *shape, bool bias)
{
    product **bucket = &g->products[cublas_bucket_of(shape)];
    for (product *p = *bucket; p != NULL; p = p->next) {
        if (p->bias == bias && same_shape(&p->shape, shape)) {
            return p;
        }
    }
    product *p = calloc(1, sizeof *p);
    TD_REQUIRE(p != NULL, TD_NOWHERE, "out of memory for a matrix product");
    p->shape = *shape;
    p->bias = bias;
    p->possible = make_operation(p) && make_layouts(p) && cublas_choose(g, p);
    p->next = *bucket;
    *bucket = p;
    return p;
}

/* Under the lock. false with td_last_error(): there is no cuBLASLt, or it does not start. */
static bool cublas_open_gpu(struct gpu *g)
{
    lt.opened = lt.opened || open_library() == TD_OK;
    if (lt.opened && g->handle == NULL && !good(lt.cublasLtCreate(&g->handle))) {
        (void)td_fail(TD_E_DEVICE, "cuBLASLt cannot start");
        g->handle = NULL;
    }
    return g->handle != NULL;
}

static cublasStatus_t cublas_run(struct gpu *g, td_cuda *gpu, product *p, void *c, const void *add,
                                 const void *a, const void *b, const void *bias)
{
    if (bias != NULL && !set_operation(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    static const float one = 1.0f, zero = 0.0f;
    static const double one64 = 1.0, zero64 = 0.0;
    bool wide = p->shape.ab_dtype == TD_F64;
    const void *alpha = wide ? (const void *)&one64 : &one;
    const void *keep = wide ? (const void *)&one64 : &one,
               *drop = wide ? (const void *)&zero64 : &zero;
    void *scratch, *workspace = td_vendor_workspace(gpu->device, p->workspace, &scratch);
    cublasStatus_t status = lt.cublasLtMatmul(
        g->handle, p->operation, alpha, b, p->b, a, p->a, add != NULL ? keep : drop,
        add != NULL ? add : c, p->c, c, p->c, &p->algorithm, workspace, p->workspace, gpu->stream);
    td_scratch_free(gpu->device, scratch);
    return status;
}

/* What is said before any work is begun: it may still do the product without the bias. */
static bool is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* Failures are told after the lock is released: a caller's fatal handler may jump away. */
bool td_cuda_vendor_matmul(td_device device, const td_cuda_product *s, void *c, const void *add,
                           const void *a, const void *b, const void *bias)
{
    td_cuda *gpu = td_cuda_of(device);
    struct gpu *g = &gpus[device.index];
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    bool opened = cublas_open_gpu(g);
    product *p = opened ? product_of(g, s, bias != NULL) : NULL;
    if (opened && p->possible) {
        status = cublas_run(g, gpu, p, c, add, a, b, bias);
        if (is_refusal(status)) { /* which CUDA may remember as an error */
            (void)td_cuda_tried(cudaPeekAtLastError());
            p->possible = false;
        }
    }
    pthread_mutex_unlock(&lock);
    TD_REQUIRE(opened, TD_NOWHERE,
               "cuda: matmul: %s (cuBLASLt comes with the CUDA toolkit; or: pip install %s)",
               td_last_error(), CUBLAS_VER_MAJOR >= 13 ? "nvidia-cublas" : "nvidia-cublas-cu12");
    TD_REQUIRE(good(status) || (bias != NULL && is_refusal(status)), TD_NOWHERE,
               "cuda: matmul: cuBLASLt: %s: %lld x %lld x %lld, batch %lld, %s to %s",
               lt.cublasLtGetStatusString(status), (long long)s->m, (long long)s->k,
               (long long)s->n, (long long)s->batch, td_dtype_name(s->ab_dtype),
               td_dtype_name(s->c_dtype));
    return good(status);
}
