/* Runs small programs of operations for tests/fuzz/fuzz_torch.py, which runs the same in PyTorch.
 *
 * usage: worker_programs levels                   the instruction sets of this machine, one a line
 *        worker_programs LEVEL THREADS <PROGRAMS  results go to standard output
 *
 * A program is lines of text; numbers of elements follow their line as f64 in binary:
 *   program PRECISION WINOGRAD
 *   input DTYPE LAYOUT TRAINED SIZE...  and the values. The next register.
 *   NAME NUMBER...                      an operation; its numbers are registers (-1: none), sizes
 *                                       or settings. The next register.
 *   show REGISTER                       writes a line "DTYPE SIZE...", then the elements, at once
 *   end                                 and the gradient of the last register
 * A program ends at "end", or where the next one begins. The results of one with "end": the last
 * register, and for each input its gradient, or its value if it is not trained: the number of
 * elements and the elements, as f64 in binary. */
#include "autograd/fused.h"
#include "autograd/tape.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tensor/cpu/isa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REGISTERS = 512, MOST_NUMBERS = 32 };

typedef struct program {
    td_tensor *at[MOST_REGISTERS];
    bool is_input[MOST_REGISTERS];
    int count;
    bool running;                /* its step has begun */
    double number[MOST_NUMBERS]; /* of the present line */
    int numbers;
} program;

static _Noreturn void stop(const char *what, const char *line)
{
    fprintf(stderr, "worker_programs: %s: %s\n", what, line);
    exit(1);
}

static double *elements(int64_t n)
{
    double *values = malloc(((size_t)n + 1) * sizeof *values);
    if (values == NULL) {
        stop("no memory for a tensor", "");
    }
    return values;
}

/* The n values behind a line; the caller frees them. */
static double *values_behind(int64_t n, const char *line)
{
    double *values = elements(n);
    if (fread(values, sizeof *values, (size_t)n, stdin) != (size_t)n) {
        stop("the values are missing behind", line);
    }
    return values;
}

/* ---- operations ---- */

static td_tensor *reg(const program *p, int i)
{
    int r = (int)p->number[i];
    if (i >= p->numbers || r >= p->count) {
        stop("no such register", "");
    }
    return r < 0 ? NULL : p->at[r];
}

static td_shape sizes(const program *p, int first)
{
    td_shape shape = { .ndim = p->numbers - first };
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = (int64_t)p->number[first + d];
    }
    return shape;
}

static td_tensor *permuted(const program *p)
{
    int order[TD_MAX_DIMS] = { 0 };
    for (int d = 0; d + 1 < p->numbers; d++) {
        order[d] = (int)p->number[1 + d];
    }
    return td_permute(reg(p, 0), order);
}

/* dim, parts */
static td_tensor *joined(const program *p, bool stacked)
{
    td_tensor *parts[MOST_NUMBERS];
    for (int i = 1; i < p->numbers; i++) {
        parts[i - 1] = reg(p, i);
    }
    int count = p->numbers - 1, dim = (int)p->number[0];
    return stacked ? td_stack(parts, count, dim) : td_cat(parts, count, dim);
}

/* x, dim, which part, sizes */
static td_tensor *part(const program *p)
{
    td_tensor *parts[MOST_NUMBERS];
    int64_t size[MOST_NUMBERS];
    for (int i = 3; i < p->numbers; i++) {
        size[i - 3] = (int64_t)p->number[i];
    }
    td_split_dim(reg(p, 0), size, p->numbers - 3, (int)p->number[1], parts);
    return parts[(int)p->number[2]];
}

/* x, mode, value, elements before each dimension, elements behind */
static td_tensor *padded(const program *p)
{
    td_pad_options options = { .x = reg(p, 0),
                               .mode = (td_pad_mode)p->number[1],
                               .value = p->number[2] };
    int dims = (p->numbers - 3) / 2;
    for (int d = 0; d < dims; d++) {
        options.before[d] = (int64_t)p->number[3 + d];
        options.after[d] = (int64_t)p->number[3 + dims + d];
    }
    return td_pad_at(options, TD_HERE);
}

/* The elements of x in order (part 0), or where they were (1); the first k, if k is not negative,
 * the largest first. */
static td_tensor *sorted(td_tensor *x, int dim, bool descending, int64_t k, int part)
{
    td_tensor *index;
    td_tensor *y = k >= 0 ? td_topk(x, k, dim, &index) : td_sort(x, dim, descending, &index);
    return part == 0 ? y : index;
}

#define R(i) reg(p, i)
#define I(i) ((int)p->number[i])
#define N(i) ((int64_t)p->number[i])
#define PAIR(i)                                                                                    \
    {                                                                                              \
        I(i), I((i) + 1)                                                                           \
    }

#define TRIPLE(i)                                                                                  \
    {                                                                                              \
        I(i), I((i) + 1), I((i) + 2)                                                               \
    }

/* The label that number i names; infinity stands for label 0. */
static int64_t ignored(const program *p, int i)
{
    return isinf(p->number[i]) ? TD_IGNORE_ZERO : N(i);
}

/* x w b, stride, padding, dilation (each h, w), groups */
static td_conv2d_options conv_options(const program *p)
{
    return (td_conv2d_options){ .x = R(0),
                                .w = R(1),
                                .b = R(2),
                                .stride_hw = PAIR(3),
                                .padding_hw = PAIR(5),
                                .dilation_hw = PAIR(7),
                                .groups = I(9) };
}

/* x, kernel, stride, padding, whether padding does not count, whether ceil_mode, dilation */
static td_pool2d_options pool_options(const program *p)
{
    return (td_pool2d_options){ .x = R(0),
                                .kernel_hw = PAIR(1),
                                .stride_hw = PAIR(3),
                                .padding_hw = PAIR(5),
                                .exclude_pad = I(7) != 0,
                                .ceil_mode = I(8) != 0,
                                .dilation_hw = PAIR(9) };
}

/* x, weight, bias, mean, variance from `first` on; whether training; eps */
static td_batch_norm_options norm_options(const program *p, td_tensor *x, int first)
{
    return (td_batch_norm_options){ .x = x,
                                    .weight = R(first),
                                    .bias = R(first + 1),
                                    .running_mean = R(first + 2),
                                    .running_var = R(first + 3),
                                    .training = I(first + 4) != 0,
                                    .eps = p->number[first + 5] };
}

/* A convolution, batch normalisation, an addition and an activation, as models do; behind
 * norm_options: the activation, the addend. */
static td_tensor *conv_norm(const program *p)
{
    td_tensor *y = td_conv2d_at(conv_options(p), TD_HERE);
    td_batch_norm_fusion fusion = { .activation = (td_norm_activation)I(16), .add = R(17) };
    return td_batch_norm_fused_at(norm_options(p, y, 10), fusion, TD_HERE);
}

/* name, and its result; without those of single elements, which tensor/kernels/elementwise.def has
 */
#define OPERATIONS(X)                                                                              \
    X(sum, td_sum(R(0)))                                                                           \
    X(mean, td_mean(R(0)))                                                                         \
    X(sum_dim, td_sum_dim(R(0), I(1), I(2) != 0))                                                  \
    X(mean_dim, td_mean_dim(R(0), I(1), I(2) != 0))                                                \
    X(max_dim, td_max_dim(R(0), I(1), I(2) != 0))                                                  \
    X(softmax, td_softmax(R(0), I(1)))                                                             \
    X(log_softmax, td_log_softmax(R(0), I(1)))                                                     \
    X(matmul, td_matmul(R(0), R(1)))                                                               \
    X(linear, td_linear(R(0), R(1), R(2)))                                                         \
    X(conv2d, td_conv2d_at(conv_options(p), TD_HERE))                                              \
    X(conv_norm, conv_norm(p))                                                                     \
    X(max_pool2d, td_max_pool2d_at(pool_options(p), TD_HERE))                                      \
    X(avg_pool2d, td_avg_pool2d_at(pool_options(p), TD_HERE))                                      \
    X(global_avg_pool2d, td_global_avg_pool2d(R(0)))                                               \
    X(batch_norm, td_batch_norm_at(norm_options(p, R(0), 1), TD_HERE))                             \
    X(layer_norm, td_layer_norm(R(0), R(1), R(2), p->number[3]))                                   \
    X(cross_entropy,                                                                               \
      td_cross_entropy(R(0), R(1), .weight = R(2), .label_smoothing = p->number[3],                \
                       .ignore_index = ignored(p, 4), .reduction = (td_loss_reduction)I(5)))       \
    X(nll_loss, td_nll_loss(R(0), R(1), .weight = R(2), .ignore_index = ignored(p, 4),             \
                            .reduction = (td_loss_reduction)I(5)))                                 \
    X(conv2d_pads, td_conv2d(R(0), R(1), R(2), .stride_hw = PAIR(3), .dilation_hw = PAIR(5),       \
                             .groups = I(7), .pads = { I(8), I(9), I(10), I(11) }))                \
    X(conv3d, td_conv3d(R(0), R(1), R(2), .stride_dhw = TRIPLE(3), .padding_dhw = TRIPLE(6),       \
                        .dilation_dhw = TRIPLE(9), .groups = I(12)))                               \
    X(instance_norm, td_instance_norm(R(0), R(1), R(2), p->number[3]))                             \
    X(group_norm_eps, td_group_norm(R(0), I(3), R(1), R(2), p->number[4]))                         \
    X(rms_norm_eps, td_rms_norm(R(0), R(1), p->number[2]))                                         \
    X(interpolate_by, td_interpolate(R(0), .scale_hw = { p->number[1], p->number[2] },             \
                                     .mode = (td_interpolation)I(3), .align_corners = I(4) == 1,   \
                                     .antialias = I(4) == 2))                                      \
    X(conv1d, td_conv1d(R(0), R(1), R(2), .stride = I(3), .padding = I(4), .dilation = I(5),       \
                        .groups = I(6)))                                                           \
    X(conv_transpose1d,                                                                            \
      td_conv_transpose1d(R(0), R(1), R(2), .stride = I(3), .padding = I(4), .dilation = I(5),     \
                          .output_padding = I(6), .groups = I(7)))                                 \
    X(max_pool1d, td_max_pool1d(R(0), I(1), .stride = I(2), .padding = I(3), .ceil_mode = I(4),    \
                                .dilation = I(5)))                                                 \
    X(avg_pool1d, td_avg_pool1d(R(0), I(1), .stride = I(2), .padding = I(3), .ceil_mode = I(4),    \
                                .exclude_pad = I(5)))                                              \
    X(conv_transpose2d,                                                                            \
      td_conv_transpose2d(R(0), R(1), R(2), .stride_hw = PAIR(3), .padding_hw = PAIR(5),           \
                          .dilation_hw = PAIR(7), .output_padding_hw = PAIR(9), .groups = I(11)))  \
    X(group_norm, td_group_norm(R(0), I(3), R(1), R(2), 1e-3))                                     \
    X(rms_norm, td_rms_norm(R(0), R(1), 1e-3))                                                     \
    X(interpolate, td_interpolate(R(0), .size_hw = PAIR(1), .mode = (td_interpolation)I(3),        \
                                  .align_corners = I(4) == 1, .antialias = I(4) == 2))             \
    X(adaptive_avg_pool1d, td_adaptive_avg_pool1d(R(0), I(1)))                                     \
    X(adaptive_max_pool1d, td_adaptive_max_pool1d(R(0), I(1)))                                     \
    X(adaptive_max_pool2d, td_adaptive_max_pool2d(R(0), I(1), I(2)))                               \
    X(adaptive_avg_pool2d, td_adaptive_avg_pool2d(R(0), I(1), I(2)))                               \
    X(bce_with_logits,                                                                             \
      td_bce_with_logits(R(0), td_sigmoid(R(1)), .reduction = (td_loss_reduction)I(2)))            \
    X(huber_loss, td_huber_loss(R(0), R(1), .delta = p->number[2]))                                \
    X(smooth_l1_loss, td_smooth_l1_loss(R(0), R(1), .delta = p->number[2]))                        \
    X(l1_loss, td_l1_loss(R(0), R(1), .reduction = (td_loss_reduction)I(2)))                       \
    X(hinge_loss, td_hinge_loss(R(0), td_sign(R(1)), .reduction = (td_loss_reduction)I(2)))        \
    X(hinge_embedding_loss,                                                                        \
      td_hinge_embedding_loss(R(0), td_sign(R(1)), .reduction = (td_loss_reduction)I(2)))          \
    X(cosine_embedding_loss, td_cosine_embedding_loss(R(0), R(1), td_sign(R(2))))                  \
    X(kl_div, td_kl_div(R(0), td_sigmoid(R(1))))                                                   \
    X(cosine_similarity, td_cosine_similarity(R(0), R(1), I(2), 0.0))                              \
    X(mse_loss, td_mse_loss(R(0), R(1)))                                                           \
    X(embedding, td_embedding(R(0), R(1)))                                                         \
    X(transpose, td_transpose(R(0), I(1), I(2)))                                                   \
    X(permute, permuted(p))                                                                        \
    X(reshape, td_reshape(R(0), sizes(p, 1)))                                                      \
    X(slice, td_slice(R(0), I(1), N(2), N(3), N(4)))                                               \
    X(expand, td_expand(R(0), sizes(p, 1)))                                                        \
    X(cat, joined(p, false))                                                                       \
    X(contiguous, td_contiguous(R(0)))                                                             \
    X(cast, td_cast(R(0), (td_dtype)I(1)))                                                         \
    X(where,                                                                                       \
      p->numbers == 2 ? td_where(td_lt(R(0), R(1)), R(0), R(1)) : td_where(R(0), R(1), R(2)))      \
    X(squeeze, td_squeeze(R(0), I(1)))                                                             \
    X(stack, joined(p, true))                                                                      \
    X(unsqueeze, td_unsqueeze(R(0), I(1)))                                                         \
    X(split, part(p))                                                                              \
    X(tile, td_tile(R(0), sizes(p, 1)))                                                            \
    X(flip, td_flip(R(0), I(1)))                                                                   \
    X(pad, padded(p))                                                                              \
    X(gather, td_gather_dim(R(0), I(1), R(2)))                                                     \
    X(scatter_add, td_scatter_add(R(0), I(1), R(2), R(3)))                                         \
    X(index_select, td_index_select(R(0), I(1), R(2)))                                             \
    X(one_hot, td_one_hot(R(0), I(1)))                                                             \
    X(sort, sorted(R(0), I(1), I(2) != 0, -1, I(3)))                                               \
    X(topk, sorted(R(0), I(1), true, I(2), I(3)))                                                  \
    X(argmax, td_argmax(R(0), I(1), I(2) != 0))                                                    \
    X(argmax_last, td_argmax_last(R(0), I(1), I(2) != 0))                                          \
    X(tril, td_tril(R(0), I(1)))                                                                   \
    X(triu, td_triu(R(0), I(1)))                                                                   \
    X(sum_dims, td_sum_dims(R(0), sizes(p, 2), I(1) != 0))                                         \
    X(mean_dims, td_mean_dims(R(0), sizes(p, 2), I(1) != 0))                                       \
    X(var, td_var(R(0), sizes(p, 3), p->number[1], I(2) != 0))                                     \
    X(std, td_std(R(0), sizes(p, 3), p->number[1], I(2) != 0))                                     \
    X(norm, td_norm(R(0), sizes(p, 2), I(1) != 0))                                                 \
    X(prod_dim, td_prod_dim(R(0), I(1), I(2) != 0))                                                \
    X(cumsum, td_cumsum(R(0), I(1)))

static td_tensor *operation(const program *p, const char *name)
{
#define X(op, result)                                                                              \
    if (strcmp(name, #op) == 0) {                                                                  \
        return result;                                                                             \
    }
    OPERATIONS(X)
#define TD_UNARY(op, reads, value, slope) X(op, td_##op(R(0)))
#define TD_UNARY_P(op, reads, value, slope) X(op, td_##op(R(0), p->number[1]))
#define TD_UNARY_PQ(op, reads, value, slope) X(op, td_##op(R(0), p->number[1], p->number[2]))
#define TD_BINARY(op, value, grad_a, reads_a, grad_b, reads_b) X(op, td_##op(R(0), R(1)))
#define TD_COMPARE(op, whether) X(op, td_##op(R(0), R(1)))
#include "tensor/kernels/elementwise.def"
#undef X
    stop("no such operation", name);
}

/* ---- lines ---- */

/* dtype, layout, whether trained, sizes */
static td_tensor *input(const program *p, const char *line)
{
    td_shape shape = sizes(p, 3);
    td_tensor *t = td_new_layout(shape, (td_dtype)p->number[0], (td_layout)p->number[1], TD_CPU);
    if (t == NULL) {
        stop(td_last_error(), line);
    }
    double *values = values_behind(td_numel(t), line);
    td_write(t, values, TD_F64);
    free(values);
    if (p->number[2] != 0) {
        td_requires_grad(t, true);
    }
    return t;
}

/* t NULL: zeros, like `zeros`. */
static void put(const td_tensor *t, const td_tensor *zeros)
{
    int64_t n = td_numel(t != NULL ? t : zeros);
    double *values = elements(n);
    memset(values, 0, (size_t)n * sizeof *values);
    if (t != NULL) {
        td_read(t, values, TD_F64);
    }
    fwrite(&n, sizeof n, 1, stdout);
    fwrite(values, sizeof *values, (size_t)n, stdout);
    free(values);
}

/* For who reads results one by one (tests/autograd/onnx_cases.py). */
static void show(const td_tensor *t)
{
    int64_t n = td_numel(t);
    double *values = elements(n);
    td_read(t, values, TD_F64);
    printf("%d", (int)t->dtype);
    for (int d = 0; d < t->ndim; d++) {
        printf(" %lld", (long long)t->shape[d]);
    }
    printf("\n");
    fwrite(values, sizeof *values, (size_t)n, stdout);
    free(values);
    fflush(stdout);
}

/* Ends the step of a program. */
static void leave(program *p)
{
    if (p->running) {
        td_step_end();
    }
    p->running = false;
    for (int i = 0; i < p->count; i++) {
        if (p->is_input[i]) {
            td_free(p->at[i]);
        }
    }
    p->count = 0;
}

static void finish(program *p, const char *line)
{
    td_tensor *y = p->at[p->count - 1], *dy = td_step_new_like(y, TD_HERE);
    double *values = values_behind(td_numel(y), line);
    td_write(dy, values, TD_F64);
    free(values);
    put(y, NULL);
    if (td_needs_grad(y) && !td_is_leaf(y)) {
        td_backward(y, .gradient = dy);
    }
    for (int i = 0; i < p->count; i++) {
        if (p->is_input[i]) {
            put(td_is_leaf(p->at[i]) ? td_grad(p->at[i]) : p->at[i], p->at[i]);
        }
    }
    leave(p);
    fflush(stdout);
}

static void read_numbers(program *p, char *at)
{
    p->numbers = 0;
    for (char *end; p->numbers < MOST_NUMBERS; at = end) {
        double number = strtod(at, &end);
        if (end == at) {
            return;
        }
        p->number[p->numbers++] = number;
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "levels") == 0) {
        for (int isa = 0; isa <= (int)td_isa_detect(); isa++) {
            puts(td_isa_name((td_isa)isa));
        }
        return 0;
    }
    for (int isa = 0; argc == 3 && isa <= (int)td_isa_detect(); isa++) {
        if (strcmp(argv[1], td_isa_name((td_isa)isa)) == 0) {
            td_isa_force((td_isa)isa);
        }
    }
    if (argc != 3 || td_set_threads(TD_CPU, atoi(argv[2])) != TD_OK) {
        stop("usage", "worker_programs levels | LEVEL THREADS");
    }
    static program p;
    char line[512], name[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        int length = 0;
        if (sscanf(line, "%31s%n", name, &length) != 1 || p.count == MOST_REGISTERS) {
            stop("not a line of a program", line);
        }
        read_numbers(&p, line + length);
        if (strcmp(name, "program") == 0) {
            leave(&p);
            td_set_math(
                (td_math){ .precision = (td_precision)p.number[0], .winograd = p.number[1] != 0 });
            td_step_begin();
            p.running = true;
        } else if (strcmp(name, "end") == 0) {
            finish(&p, line);
        } else if (strcmp(name, "show") == 0) {
            show(reg(&p, 0));
        } else {
            p.is_input[p.count] = strcmp(name, "input") == 0;
            td_tensor *t = p.is_input[p.count] ? input(&p, line) : operation(&p, name);
            p.at[p.count++] = t;
        }
    }
    return 0;
}
