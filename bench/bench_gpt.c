/* Parts of a GPT's work, one step at a time, for bench/run.py (bench/peer.h);
 * bench/torch_gpt_peer.py takes the same arguments.
 *
 *     bench_gpt train MODEL BATCH T THREADS fp32|bf16        a training step, AdamW
 *     bench_gpt write MODEL T - THREADS fp32|bf16            a token behind T - 1 others; bf16: the
 *                                                            weights. MODEL: td_model's, or a path
 *     bench_gpt attention BxH T WIDTH THREADS fp32|bf16      causal, forward and backward
 *     bench_gpt head ROWS WORDS WIDTH THREADS fp32|unfused   linear and cross-entropy, forward and
 *                                                            backward */
#include "autograd/attention.h"
#include "autograd/losses.h"
#include "autograd/hooks.h"
#include "bench/peer.h"
#include "nn/models/files/gpt_files.h"
#include "nn/models/gpt_internal.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tensor/kernels/kernels.h"

#include <string.h>

typedef struct gpt_bench {
    td_module *gpt;
    td_optim *optim;
    td_tensor *x, *y, *w; /* tokens and labels; qkv, or rows, labels and weights of the head */
    td_gpt_cache cache;
    int64_t sizes[3], past;
    bool bf16, unfused;
} gpt_bench;

static td_tensor *random_floats(td_shape shape)
{
    td_tensor *t = td_new(shape, TD_F32, TD_CPU);
    td_normal_(t, 0, 0.5, td_default_generator());
    td_requires_grad(t, true);
    return t;
}

static td_tensor *random_tokens(td_shape shape, int64_t words)
{
    td_tensor *t = td_new(shape, TD_I64, TD_CPU);
    int64_t *values = td_data_rw(t);
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] = td_random_int(td_default_generator(), 0, words);
    }
    return t;
}

/* ---- steps ---- */

static void train(void *user)
{
    gpt_bench *b = user;
    TD_STEP {
        td_tensor *loss = td_forward2(b->gpt, b->x, b->y);
        td_zero_grad(b->optim);
        td_backward(loss);
        td_optim_step(b->optim);
        (void)td_item(loss);
    }
}

static void write_token(void *user)
{
    gpt_bench *b = user;
    float logit;
    b->cache.past = b->past;
    TD_STEP {
        td_no_grad_begin();
        td_tensor *logits = td_forward(b->gpt, b->x);
        td_read(td_slice(logits, 2, 0, 1, 1), &logit, TD_F32);
        td_no_grad_end();
    }
}

static void attention(void *user)
{
    gpt_bench *b = user;
    TD_STEP {
        td_zero_grad_of(b->x);
        td_tensor *qkv = b->bf16 ? td_cast(b->x, TD_BF16) : b->x;
        td_backward(td_sum(td_attention(.qkv = qkv, .heads = b->sizes[1])));
    }
}

static void head(void *user)
{
    gpt_bench *b = user;
    TD_STEP {
        td_zero_grad_of(b->x);
        td_zero_grad_of(b->w);
        td_backward(b->unfused ? td_cross_entropy(td_linear(b->x, b->w, NULL), b->y)
                               : td_linear_cross_entropy(.x = b->x, .w = b->w, .labels = b->y));
    }
}

/* ---- setting up ---- */

static bool open_model(gpt_bench *b, const char *model, bool trains, int64_t batch, int64_t length)
{
    b->gpt = strchr(model, '/') != NULL ? td_gpt_load(model) : td_model(model);
    if (b->gpt == NULL) {
        return false;
    }
    int64_t words = td_gpt_options_of(b->gpt).vocabulary;
    if (trains) {
        b->x = random_tokens(TD_SHAPE(batch, length), words);
        b->y = random_tokens(TD_SHAPE(batch, length), words);
        b->optim = td_adamw(td_parameters(b->gpt), .lr = 1e-4, .weight_decay = 0.1);
        return b->optim != NULL;
    }
    td_eval(b->gpt);
    b->past = length - 1;
    b->x = random_tokens(TD_SHAPE(1, 1), words);
    bool made = !b->bf16 || td_gpt_hold_bf16(b->gpt) == TD_OK;
    made = made && td_gpt_cache_make(&b->cache, b->gpt, 1, length) == TD_OK;
    td_gpt_use_cache(b->gpt, &b->cache);
    return made;
}

static bool set_up(gpt_bench *b, char **a, void (**step)(void *user))
{
    bool trains = strcmp(a[1], "train") == 0;
    int64_t batch = strtoll(a[2], NULL, 10);
    b->bf16 = strcmp(a[6], "bf16") == 0;
    b->unfused = strcmp(a[6], "unfused") == 0;
    td_set_threads(TD_CPU, (int)strtol(a[5], NULL, 10));
    if (trains || strcmp(a[1], "write") == 0) {
        int64_t length = strtoll(a[trains ? 4 : 3], NULL, 10);
        *step = trains ? train : write_token;
        td_set_math(
            (td_math){ .precision = trains && b->bf16 ? TD_PRECISION_BF16 : TD_PRECISION_FP32 });
        return open_model(b, a[2], trains, trains ? strtoll(a[3], NULL, 10) : 1, length);
    }
    int64_t second = strtoll(a[3], NULL, 10), width = strtoll(a[4], NULL, 10);
    if (strcmp(a[1], "attention") == 0) {
        b->sizes[1] = strtoll(strchr(a[2], 'x') + 1, NULL, 10);
        b->x = random_floats(TD_SHAPE(batch, second, 3 * b->sizes[1] * width));
        *step = attention;
        return true;
    }
    b->x = random_floats(TD_SHAPE(batch, width));
    b->w = random_floats(TD_SHAPE(second, width));
    b->y = random_tokens(TD_SHAPE(batch), second);
    *step = head;
    return strcmp(a[1], "head") == 0;
}

int main(int argc, char **argv)
{
    gpt_bench b = { .gpt = NULL };
    void (*step)(void *user) = NULL;
    char facts[160];
    td_manual_seed(0);
    if (argc != 7 || !set_up(&b, argv, &step)) {
        fprintf(stderr, "bench_gpt: %s\n", argc != 7 ? "see its first lines" : td_last_error());
        return 1;
    }
    snprintf(facts, sizeof facts, "tandem %s, %s, %s, %d threads", TANDEM_VERSION,
             td_kernels_of(TD_CPU)->name, argv[6], td_threads(TD_CPU));
    bench_serve(facts, step, &b);
    if (b.cache.k != NULL) {
        td_gpt_use_cache(b.gpt, NULL);
        td_gpt_cache_free(&b.cache, b.gpt);
    }
    td_optim_free(b.optim);
    td_module_free(b.gpt);
    td_free(b.x);
    td_free(b.y);
    td_free(b.w);
    return 0;
}
