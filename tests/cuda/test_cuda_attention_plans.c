/* Without a GPU: cuDNN has plans for attention and its gradient on an H100 and an H200 that are
 * only described, and what workspace they ask for. The test describes the graphs itself, and proves
 * nothing about tandem's attention, which does not use cuDNN: it holds docs/cuda.md's numbers
 * against cuDNN's version. cuDNN compiles these kernels when it makes a plan, which takes a driver:
 * a stand-in (tests/cuda/libcuda.c). The gradient's graph is the one whose sums have one order: it
 * keeps dp, of which the workspace is a multiple. */
#include "tests/cuda/described_gpu.h"

#if TD_HAVE_CUDA && !TD_EMULATED

#include <dlfcn.h>
#include <unistd.h>

#include "tensor/cuda/cudnn_plan.c" /* for its inside: it asks for plans of convolutions only */

typedef cudnnBackendDescriptor_t part;

/* A graph in the making: [batch,T,heads + 2 kv_heads,width] as one product has written it. */
enum { BUILDS = 8, OPERATIONS = 32, AT_ONCE = 2, VIRTUAL = 0, FIRST_VIRTUAL = 100 };
typedef struct graph {
    td_cudnn_target target;
    int64_t batch, heads, kv_heads, tokens, width;
    cudnnDataType_t half;
    bool causal;
    td_cudnn_build builds[BUILDS];
    int build;
    part operations[OPERATIONS];
    int64_t count, last_id;
} graph;

/* Where the next descriptors go: a build holds few. */
static td_cudnn_build *room(graph *g)
{
    if (g->builds[g->build].count + AT_ONCE > TD_CUDNN_MAX_DESCRIPTORS) {
        g->build++;
        assert_in_range(g->build, 0, BUILDS - 1);
    }
    td_cudnn_build *b = &g->builds[g->build];
    b->lib = g->target.lib;
    return b;
}

/* ---- tensors ---- */

enum { Q = 1, K, V, Y, STATS, SCALE, LOWEST, ONE, DY, DQ, DK, DV, SUM };

static part tensor_of(graph *g, int64_t id, cudnnDataType_t type, const int64_t shape[4],
                      const int64_t stride[4], bool by_value)
{
    td_cudnn_build *b = room(g);
    int64_t alignment = 16, named = id == VIRTUAL ? FIRST_VIRTUAL + g->last_id++ : id;
    bool is_virtual = id == VIRTUAL;
    part d = td_cudnn_make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &named);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value) {
        td_cudnn_set(b, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    }
    td_cudnn_finish(b, d, "a tensor");
    return d;
}

/* Heads of the packed memory, [batch,heads,T,width]; turned: [batch,heads,width,T]. */
static part packed(graph *g, int64_t id, int64_t heads, bool turned)
{
    int64_t row = (g->heads + 2 * g->kv_heads) * g->width;
    int64_t shape[4] = { g->batch, heads, g->tokens, g->width };
    int64_t stride[4] = { g->tokens * row, g->width, row, 1 };
    int64_t turned_shape[4] = { g->batch, heads, g->width, g->tokens };
    int64_t turned_stride[4] = { g->tokens * row, g->width, 1, row };
    return turned ? tensor_of(g, id, g->half, turned_shape, turned_stride, false)
                  : tensor_of(g, id, g->half, shape, stride, false);
}

/* [batch,T,heads,width] of the result, and, VIRTUAL, in f32. */
static part result(graph *g, int64_t id)
{
    int64_t shape[4] = { g->batch, g->heads, g->tokens, g->width };
    int64_t row = g->heads * g->width, stride[4] = { g->tokens * row, g->width, row, 1 };
    return tensor_of(g, id, id == VIRTUAL ? CUDNN_DATA_FLOAT : g->half, shape, stride, false);
}

static part scores(graph *g, cudnnDataType_t type, bool turned)
{
    int64_t t = g->tokens, shape[4] = { g->batch, g->heads, t, t };
    int64_t stride[4] = { g->heads * t * t, t * t, turned ? 1 : t, turned ? t : 1 };
    return tensor_of(g, VIRTUAL, type, shape, stride, false);
}

/* A number a row of the scores. */
static part column(graph *g, int64_t id)
{
    int64_t shape[4] = { g->batch, g->heads, g->tokens, 1 };
    int64_t stride[4] = { g->heads * g->tokens, g->tokens, 1, 1 };
    return tensor_of(g, id, CUDNN_DATA_FLOAT, shape, stride, false);
}

static part number(graph *g, int64_t id)
{
    static const int64_t one[4] = { 1, 1, 1, 1 };
    return tensor_of(g, id, CUDNN_DATA_FLOAT, one, one, true);
}

/* ---- operations ---- */

typedef struct operand {
    cudnnBackendAttributeName_t name;
    part t; /* NULL: there is none */
} operand;

enum { OPERANDS = 5 };

static void operation(graph *g, cudnnBackendDescriptorType_t type, const operand *operands)
{
    td_cudnn_build *b = room(g);
    part d = td_cudnn_make(b, type);
    for (int i = 0; i < OPERANDS; i++) {
        if (operands[i].t != NULL) {
            td_cudnn_set(b, d, operands[i].name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operands[i].t);
        }
    }
    td_cudnn_finish(b, d, "an operation");
    assert_in_range(g->count, 0, OPERATIONS - 1);
    g->operations[g->count++] = d;
}

/* c = a b */
static void multiply(graph *g, part a, part b, part c)
{
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    td_cudnn_build *build = room(g);
    part d = td_cudnn_make(build, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    td_cudnn_set(build, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    td_cudnn_finish(build, d, "a product");
    operation(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
              (operand[OPERANDS]){ { CUDNN_ATTR_OPERATION_MATMUL_ADESC, a },
                                   { CUDNN_ATTR_OPERATION_MATMUL_BDESC, b },
                                   { CUDNN_ATTR_OPERATION_MATMUL_CDESC, c },
                                   { CUDNN_ATTR_OPERATION_MATMUL_DESC, d } });
}

/* y = mode(x, b), b NULL: mode(x). Of GEN_INDEX y is the index along an axis; of BINARY_SELECT, x
 * where t, otherwise b. Returns y. */
static part elements(graph *g, cudnnPointwiseMode_t mode, part x, part b, part t, part y,
                     int64_t axis)
{
    cudnnDataType_t type = mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    td_cudnn_build *build = room(g);
    part d = td_cudnn_make(build, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    td_cudnn_set(build, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    td_cudnn_set(build, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
        td_cudnn_set(build, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    }
    td_cudnn_finish(build, d, "elements");
    operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
              (operand[OPERANDS]){ { CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d },
                                   { CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x },
                                   { CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b },
                                   { CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t },
                                   { CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y } });
    return y;
}
#define ELEMENTS(mode, x, b, y) elements(g, CUDNN_POINTWISE_##mode, x, b, NULL, y, 0)

static void reduce(graph *g, cudnnReduceTensorOp_t op, part x, part y)
{
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    td_cudnn_build *build = room(g);
    part d = td_cudnn_make(build, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    td_cudnn_set(build, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                 &op);
    td_cudnn_set(build, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    td_cudnn_finish(build, d, "a reduction");
    operation(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
              (operand[OPERANDS]){ { CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x },
                                   { CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y },
                                   { CUDNN_ATTR_OPERATION_REDUCTION_DESC, d } });
}

/* The same elements in y's order. Returns y. */
static part turn(graph *g, part x, part y)
{
    operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
              (operand[OPERANDS]){ { CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x },
                                   { CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y } });
    return y;
}

/* Scores where the key is not behind the query, otherwise the lowest number. */
static part masked(graph *g, part x)
{
    if (!g->causal) {
        return x;
    }
    part row = scores(g, CUDNN_DATA_INT32, false), key = scores(g, CUDNN_DATA_INT32, false);
    elements(g, CUDNN_POINTWISE_GEN_INDEX, x, NULL, NULL, row, 2);
    elements(g, CUDNN_POINTWISE_GEN_INDEX, x, NULL, NULL, key, 3);
    part seen = ELEMENTS(CMP_GE, row, key, scores(g, CUDNN_DATA_BOOLEAN, false));
    return elements(g, CUDNN_POINTWISE_BINARY_SELECT, x, number(g, LOWEST), seen,
                    scores(g, CUDNN_DATA_FLOAT, false), 0);
}

/* ---- the two graphs ---- */

#define SCORES scores(g, CUDNN_DATA_FLOAT, false)

/* y = softmax(scale q k^T) v, and the logarithm of each row's sum of exponentials */
static void describe_forward(graph *g)
{
    part x = SCORES, most = column(g, VIRTUAL), sum = column(g, VIRTUAL);
    multiply(g, packed(g, Q, g->heads, false), packed(g, K, g->kv_heads, true), x);
    x = masked(g, ELEMENTS(MUL, x, number(g, SCALE), SCORES));
    reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, most);
    part e = ELEMENTS(EXP, ELEMENTS(SUB, x, most, SCORES), NULL, SCORES);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    ELEMENTS(ADD, most, ELEMENTS(LOG, sum, NULL, column(g, VIRTUAL)), column(g, STATS));
    part p = ELEMENTS(DIV, e, sum, scores(g, g->half, false));
    multiply(g, p, packed(g, V, g->kv_heads, false), result(g, Y));
}

/* to = a b, for heads of keys and values: of fewer than there are queries', the sum of a group's */
static void multiply_heads(graph *g, part a, part b, part to)
{
    if (g->heads == g->kv_heads) {
        multiply(g, a, b, to);
        return;
    }
    int64_t shape[4] = { g->batch, g->heads, g->tokens, g->width };
    int64_t plane = g->tokens * g->width, stride[4] = { g->heads * plane, plane, g->width, 1 };
    part all = tensor_of(g, VIRTUAL, g->half, shape, stride, false);
    multiply(g, a, b, all);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, all, to);
}

/* dq, dk, dv of dy: ds = p (dy v^T - rows of dy y) scale, dq = ds k, dk = ds^T q, dv = p^T dy */
static void describe_backward(graph *g)
{
    part dy = result(g, DY), q = packed(g, Q, g->heads, false);
    part keys = packed(g, K, g->kv_heads, true), sum = column(g, VIRTUAL), x = SCORES, dp = SCORES;
    part scale = number(g, SCALE);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, ELEMENTS(MUL, dy, result(g, Y), result(g, VIRTUAL)), sum);
    sum = ELEMENTS(MUL, sum, number(g, ONE), column(g, SUM));
    multiply(g, q, keys, x);
    x = ELEMENTS(SUB, ELEMENTS(MUL, x, scale, SCORES), column(g, STATS), SCORES);
    part p = ELEMENTS(EXP, masked(g, x), NULL, SCORES);
    multiply_heads(g, turn(g, p, scores(g, g->half, true)), dy, packed(g, DV, g->kv_heads, false));
    multiply(g, dy, packed(g, V, g->kv_heads, true), dp);
    part ds = ELEMENTS(MUL, ELEMENTS(SUB, dp, sum, SCORES), p, SCORES);
    ds = ELEMENTS(MUL, ds, scale, SCORES);
    multiply_heads(g, turn(g, ds, scores(g, g->half, true)), q, packed(g, DK, g->kv_heads, false));
    multiply(g, ds, turn(g, keys, packed(g, VIRTUAL, g->kv_heads, false)),
             packed(g, DQ, g->heads, false));
}

/* ---- plans ---- */

/* The workspace of the heuristic's first plan that can be made; -1: there is none. */
static int64_t workspace_of(graph *g, void (*describe)(graph *g))
{
    describe(g);
    td_cudnn_build *b = room(g);
    part d = td_cudnn_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    td_cudnn_set(b, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->count,
                 g->operations);
    td_cudnn_finish(b, d, "a graph");
    for (int i = 0; i <= g->build; i++) {
        if (g->builds[i].status != CUDNN_STATUS_SUCCESS) {
            fail_msg("%s", g->builds[i].message);
        }
    }
    part configurations[MAX_CONFIGURATIONS];
    int made, found = ask(&g->target, d, CUDNN_HEUR_MODE_A, configurations, &made);
    td_cudnn_plan plan = { .plan = NULL };
    for (int i = 0; i < found && plan.plan == NULL; i++) {
        (void)cudnn_make_plan(&g->target, configurations[i], &plan);
    }
    int64_t workspace = plan.plan != NULL ? plan.workspace : -1;
    td_cudnn_plan_end(g->target.lib, &plan);
    for (int i = 0; i < made; i++) {
        g->target.lib->cudnnBackendDestroyDescriptor(configurations[i]);
    }
    for (int i = g->build; i >= 0; i--) {
        td_cudnn_end(&g->builds[i]);
    }
    return workspace;
}

/* The driver lies beside this program. */
static bool open_driver(void)
{
    char path[1024];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    assert_true(length > 0);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "libcuda.so.1");
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL;
}

static void check_plans(graph like)
{
    enum { FEW = 4096 };
    int64_t tiles = (like.tokens + 127) / 128 * 128;
    graph g = like;
    int64_t forward = workspace_of(&g, describe_forward);
    g = like;
    int64_t backward = workspace_of(&g, describe_backward);
    print_message("# %lld x %lld/%lld x %lld x %lld: %lld and %lld bytes\n", (long long)g.batch,
                  (long long)g.heads, (long long)g.kv_heads, (long long)g.tokens,
                  (long long)g.width, (long long)forward, (long long)backward);
    assert_in_range(forward, 0, FEW);
    /* dp in 16 bits, and where heads share keys and values, dk and dv of each head. */
    int64_t grouped = g.heads == g.kv_heads ? 0 : 4 * g.batch * g.heads * tiles * g.width;
    assert_in_range(backward, 0, 2 * g.batch * g.heads * tiles * tiles + grouped + FEW);
}

static void test_plans(const char *name)
{
    td_cudnn_target target = described_gpu(name);
    const graph graphs[] = {
        { .batch = 8, .heads = 12, .kv_heads = 12, .tokens = 1024, .width = 64, .causal = true },
        { .batch = 2, .heads = 12, .kv_heads = 4, .tokens = 1000, .width = 128, .causal = true },
        { .batch = 2, .heads = 4, .kv_heads = 4, .tokens = 64, .width = 96 },
    };
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        graph g = graphs[i];
        g.target = target;
        g.half = i == 2 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
        check_plans(g);
    }
    target.lib->cudnnBackendDestroyDescriptor(target.description);
}

static void test_h100(void **state)
{
    (void)state;
    test_plans("H100");
}

static void test_h200(void **state)
{
    (void)state;
    test_plans("H200");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_h100), cmocka_unit_test(test_h200) };
    if (!open_driver()) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
