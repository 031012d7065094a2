/* A run that td_checkpoint_save with .loader has saved anywhere goes on as if it had never stopped:
 * the same samples, the same bits. And loaders' states in files that do not fit, or are hostile. */
#include "nn/extra/ema.h"
#include "nn/extra/scaler.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tests/help/entry_data.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 22, BATCH = 4, EPOCHS = 3, MOST = EPOCHS * SAMPLES, FEATURES = 5 };

/* ---- samplers of the program's own ---- */

typedef enum order_kind { BY_EPOCH, BY_DEFAULT_GENERATOR, BY_STATE, WITH_REPEATS } order_kind;

typedef struct own_sampler {
    td_sampler base;
    order_kind kind;
    td_generator state;
} own_sampler;

static int64_t own_count(const td_sampler *sampler, int64_t length)
{
    return ((const own_sampler *)sampler)->kind == WITH_REPEATS ? length + 3 : length;
}

static int64_t own_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    own_sampler *s = (own_sampler *)sampler;
    td_generator *g = s->kind == BY_STATE ? &s->state : td_default_generator();
    int64_t count = own_count(sampler, length);
    if (s->kind == BY_DEFAULT_GENERATOR || s->kind == BY_STATE) {
        td_random_permutation(g, index, length);
        return length;
    }
    for (int64_t i = 0; i < count; i++) {
        index[i] = (i * 7 + (int64_t)epoch * 5) % length;
    }
    return count;
}

static void own_free(td_sampler *sampler)
{
    free(sampler);
}

static td_sampler *new_sampler(order_kind kind)
{
    own_sampler *s = malloc(sizeof *s);
    assert_non_null(s);
    *s = (own_sampler){ .base = { own_order, own_count, own_free }, .kind = kind };
    td_generator_seed(&s->state, 11);
    return &s->base;
}

/* ---- a run ---- */

typedef struct run_case {
    const char *name;
    bool shuffle, own_generator;
    bool own_sampler;
    order_kind order;
    int workers, accumulate; /* batches for a step */
    bool drop_last;
} run_case;

typedef struct run {
    const run_case *c;
    td_dataset *data;
    td_module *net;
    td_optim *optim;
    td_ema *ema;
    td_scaler *scaler;
    td_loader *loader;
    td_generator generator;
} run;

/* What a run has seen and made. */
typedef struct trail {
    int64_t seen[MOST + EPOCHS * 3];
    int count;
    uint64_t hash;
} trail;

static td_dataset *make_data(int64_t length)
{
    td_tensor *x = td_new(TD_SHAPE(length, FEATURES), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(length), TD_I64, TD_CPU);
    td_generator g;
    td_generator_seed(&g, 3);
    td_normal_(x, 0, 1, &g);
    for (int64_t i = 0; i < length; i++) {
        td_set(y, &i, (double)(i % 3));
    }
    td_dataset *data = td_tensor_dataset(x, y);
    assert_non_null(data);
    td_free(x);
    td_free(y);
    return data;
}

/* Everything that a resumed run must not depend on is of the seed. */
static void open_run(run *r, const run_case *c, uint64_t seed, int workers)
{
    *r = (run){ .c = c, .data = make_data(SAMPLES) };
    td_manual_seed(seed);
    td_generator_seed(&r->generator, seed + 1);
    r->net = td_nn_sequential(td_nn_linear(FEATURES, 8), td_nn_relu(), td_nn_dropout(0.3),
                              td_nn_linear(8, 3));
    r->optim = td_adam(td_parameters(r->net), .lr = 0.01);
    r->ema = td_ema_new(r->net, .decay = 0.9, .warmup = true);
    r->scaler = td_scaler_new(.patience = 5, .scale = 8);
    r->loader = td_loader_open(r->data, .batch_size = BATCH, .shuffle = c->shuffle,
                               .workers = workers, .drop_last = c->drop_last,
                               .generator = c->own_generator ? &r->generator : NULL,
                               .sampler = c->own_sampler ? new_sampler(c->order) : NULL);
    assert_true(r->loader != NULL && r->optim != NULL && r->ema != NULL && r->scaler != NULL);
}

static void close_run(run *r)
{
    td_loader_close(r->loader);
    td_scaler_free(r->scaler);
    td_ema_free(r->ema);
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_dataset_free(r->data);
}

static td_checkpoint_options contents(const run *r, const char *path)
{
    return (td_checkpoint_options){ .path = path,
                                    .model = r->net,
                                    .optim = r->optim,
                                    .ema = r->ema,
                                    .scaler = r->scaler,
                                    .loader = r->loader };
}

static void save_run(const run *r, const char *path)
{
    if (td_checkpoint_save_at(contents(r, path), TD_HERE) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
}

static void load_run(const run *r, const char *path)
{
    if (td_checkpoint_load_at(contents(r, path), TD_HERE) != TD_OK) {
        fail_msg("%s: %s", r->c->name, td_last_error());
    }
}

/* A batch; the last of a group, counted over all epochs, makes a step. */
static void train(run *r, const td_batch *batch, int number)
{
    TD_STEP {
        td_tensor *loss = td_cross_entropy(td_forward(r->net, batch->x), batch->y);
        td_backward(td_scaler_loss(r->scaler, loss));
        if ((number + 1) % r->c->accumulate == 0) {
            if (td_scaler_unscale(r->scaler, td_parameters(r->net))) {
                td_optim_step(r->optim);
                td_ema_update(r->ema);
            }
            td_zero_grad(r->optim);
        }
    }
}

static uint64_t hash_of(run *r)
{
    uint64_t hash = 0;
    for (int pass = 0; pass < 2; pass++) {
        const td_tensor *flat = td_params_flat(td_parameters(r->net));
        const unsigned char *bytes = td_data(flat);
        for (int64_t i = 0; i < td_numel(flat) * 4; i++) {
            hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
        }
        td_ema_swap(r->ema);
    }
    return hash;
}

/* From batch `from` of the run to `to`, or to the end of its epochs. Returns the next batch. */
static int go(run *r, trail *t, int from, int to)
{
    int number = from;
    while (number < to && td_loader_epoch(r->loader) < EPOCHS) {
        for (td_batch batch; number < to && td_loader_next(r->loader, &batch); number++) {
            memcpy(t->seen + t->count, batch.samples, (size_t)batch.size * sizeof(int64_t));
            t->count += (int)batch.size;
            train(r, &batch, number);
        }
        assert_int_equal(td_loader_status(r->loader), TD_OK);
    }
    return number;
}

/* Stops after `stop` batches, in each possible way, and goes on in another process, as it were. */
static void check_stop(const run_case *c, const trail *whole, int stop)
{
    const char *path = temp_path("run.safetensors");
    trail t = { .count = 0 };
    run r;
    open_run(&r, c, 1, c->workers);
    int number = go(&r, &t, 0, stop);
    save_run(&r, path);
    close_run(&r);
    open_run(&r, c, 77, 4 - c->workers); /* another number of workers, too */
    load_run(&r, path);
    save_run(&r, path); /* what was loaded is saved as it was */
    close_run(&r);
    open_run(&r, c, 78, c->workers);
    load_run(&r, path);
    go(&r, &t, number, INT32_MAX);
    t.hash = hash_of(&r);
    close_run(&r);
    if (t.count != whole->count ||
        memcmp(t.seen, whole->seen, (size_t)t.count * sizeof *t.seen) != 0) {
        fail_msg("%s, stopped after batch %d: other samples", c->name, stop);
    }
    if (t.hash != whole->hash) {
        fail_msg("%s, stopped after batch %d: other bits", c->name, stop);
    }
}

static void test_goes_on_anywhere(void **state)
{
    (void)state;
    static const run_case orders[] = {
        { .name = "in order" },
        { .name = "shuffle", .shuffle = true },
        { .name = "shuffle, drop_last", .shuffle = true, .drop_last = true },
        { .name = "shuffle, a generator of its own", .shuffle = true, .own_generator = true },
        { .name = "by epoch", .own_sampler = true, .order = BY_EPOCH },
        { .name = "by the default generator", .own_sampler = true, .order = BY_DEFAULT_GENERATOR },
        { .name = "by a state", .own_sampler = true, .order = BY_STATE },
        { .name = "with repeats", .own_sampler = true, .order = WITH_REPEATS },
    };
    static const int groups[] = { 1, 4 };
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        for (int k = 0; k < 4; k++) {
            run_case c = orders[i];
            c.workers = k / 2 * 4;
            c.accumulate = groups[k % 2];
            trail whole = { .count = 0 };
            run r;
            open_run(&r, &c, 1, c.workers);
            int batches = go(&r, &whole, 0, INT32_MAX);
            whole.hash = hash_of(&r);
            close_run(&r);
            for (int stop = 0; stop < batches; stop += 1 + (k > 0)) {
                check_stop(&c, &whole, stop);
            }
        }
    }
}

/* The rest of an epoch with batches of another size: each sample of the epoch once. */
static void test_another_batch_size(void **state)
{
    (void)state;
    const run_case c = { .name = "shuffle", .shuffle = true, .accumulate = 1 };
    const char *path = temp_path("run.safetensors");
    trail t = { .count = 0 };
    run r;
    open_run(&r, &c, 1, 0);
    go(&r, &t, 0, 3);
    save_run(&r, path);
    close_run(&r);
    for (int size = 1; size <= SAMPLES + 1; size++) {
        bool there[SAMPLES] = { false };
        int seen = t.count;
        for (int i = 0; i < t.count; i++) {
            there[t.seen[i]] = true;
        }
        open_run(&r, &c, 5, 0);
        td_loader_close(r.loader);
        r.loader = td_loader_open(r.data, .batch_size = size, .shuffle = true, .workers = 2);
        load_run(&r, path);
        for (td_batch batch; td_loader_next(r.loader, &batch); seen += (int)batch.size) {
            assert_int_equal(batch.y->shape[0], batch.size);
            for (int64_t i = 0; i < batch.size; i++) {
                assert_false(there[batch.samples[i]]);
                there[batch.samples[i]] = true;
                int64_t at = i;
                assert_true(td_get(batch.y, &at) == (double)(batch.samples[i] % 3));
            }
        }
        assert_int_equal(seen, SAMPLES);
        assert_int_equal(td_loader_epoch(r.loader), 1);
        int whole = 0; /* and the next epoch is whole again */
        for (td_batch batch; td_loader_next(r.loader, &batch); whole += (int)batch.size) {
        }
        assert_int_equal(whole, SAMPLES);
        assert_int_equal(td_loader_status(r.loader), TD_OK);
        close_run(&r);
    }
}

/* ---- files that do not fit ---- */

enum { MOST_TEXTS = 40 };

/* The file with another value of one key, or without it (value NULL). */
static void write_changed(const char *from, const char *to, const char *key, const char *value)
{
    static const char *const keys[] = { "tandem.format",
                                        "optimizer.kind",
                                        "optimizer.lr",
                                        "ema.updates",
                                        "scaler",
                                        "loader.epoch",
                                        "loader.dataset",
                                        "loader.done",
                                        "loader.samples",
                                        "loader.order",
                                        "loader.before",
                                        "loader.generator",
                                        "random.default",
                                        "random.order",
                                        "dropout.2",
                                        "optimizer.0.weight.step",
                                        "optimizer.0.bias.step",
                                        "optimizer.3.weight.step",
                                        "optimizer.3.bias.step" };
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(from, &file), TD_OK);
    td_metadata texts[MOST_TEXTS];
    int count = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = td_safetensors_metadata(file, keys[i]);
        text = strcmp(keys[i], key) == 0 ? value : text;
        if (text != NULL) {
            texts[count++] = (td_metadata){ keys[i], text };
        }
    }
    td_safetensors_entry entries[MOST_TEXTS];
    int tensors = td_safetensors_count(file);
    assert_true(tensors <= MOST_TEXTS);
    for (int i = 0; i < tensors; i++) {
        entries[i] = *td_safetensors_get(file, i);
        entries[i].data = entry_data(file, td_safetensors_get(file, i));
    }
    assert_int_equal(td_safetensors_write(to, entries, tensors, texts, count), TD_OK);
    for (int i = 0; i < tensors; i++) {
        free((void *)(uintptr_t)entries[i].data);
    }
    td_safetensors_close(file);
}

typedef struct change {
    const char *key, *value, *says;
} change;

/* Nothing is changed by a file that does not fit: the run goes on as it was. */
static void check_refused(const run_case *c, const char *path, const change *x)
{
    const char *changed = temp_path("changed.safetensors");
    write_changed(path, changed, x->key, x->value);
    run r;
    open_run(&r, c, 1, 0);
    trail before = { .count = 0 }, t = { .count = 0 };
    go(&r, &before, 0, 8);
    uint64_t hash = hash_of(&r);
    td_generator g = *td_default_generator();
    td_status status = td_checkpoint_load_at(contents(&r, changed), TD_HERE);
    if (status == TD_OK) {
        fail_msg("%s = %s is taken", x->key, x->value != NULL ? x->value : "(none)");
    }
    assert_error_says("changed.safetensors", x->says, NULL);
    assert_true(hash_of(&r) == hash && memcmp(&g, td_default_generator(), sizeof g) == 0);
    assert_int_equal(td_loader_epoch(r.loader), 1);
    go(&r, &t, 8, INT32_MAX);
    assert_int_equal(before.count + t.count, MOST);
    close_run(&r);
}

static void test_hostile_places(void **state)
{
    (void)state;
    static const change shuffled[] = {
        { "loader.epoch", "-1", "loader.epoch is '-1'" },
        { "loader.epoch", "281474976710656", "loader.epoch is 281474976710656" },
        { "loader.epoch", "99999999999999999999", "loader.epoch is" },
        { "loader.epoch", "1x", "loader.epoch is '1x'" },
        { "loader.epoch", NULL, "saved without .loader" },
        { "loader.done", "-4", "loader.done is '-4'" },
        { "loader.done", "23", "loader.done is 23, of 22 samples" },
        { "loader.done", "281474976710656", "loader.done is 281474976710656" },
        { "loader.done", NULL, "loader.done" },
        { "loader.samples", "21", "loader.samples is 21" },
        { "loader.samples", "281474976710656", "loader.samples is 281474976710656" },
        { "loader.samples", NULL, "loader.samples" },
        { "loader.dataset", "21", "the dataset has 21 samples in the file, 22 here" },
        { "loader.dataset", "", "loader.dataset is ''" },
        { "loader.order", NULL, "loader.order" },
        { "loader.order", "", "loader.order" },
        { "loader.order", "backwards", "loader.order is 'backwards'" },
        { "loader.order", "shuffled 1 2", "loader.order is 'shuffled 1 2'" },
        { "loader.order", "shuffled 1 0 23", "loader.samples is 22" },
        { "loader.order", "own", "loader.before" },
        { "random.default", "1 624 0 0 00", "random.default is" },
        { "random.order", "shuffled", "random.order is 'shuffled'" },
    };
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("run.safetensors"));
    run_case c = { .name = "shuffle", .shuffle = true, .accumulate = 1 };
    trail t = { .count = 0 };
    run r;
    open_run(&r, &c, 1, 0);
    go(&r, &t, 0, 3);
    save_run(&r, path);
    close_run(&r);
    for (size_t i = 0; i < sizeof shuffled / sizeof *shuffled; i++) {
        check_refused(&c, path, &shuffled[i]);
    }
    /* Of a sampler of one's own, and a generator of one's own. */
    c = (run_case){ .name = "own",
                    .own_sampler = true,
                    .order = BY_DEFAULT_GENERATOR,
                    .own_generator = true,
                    .accumulate = 1 };
    t.count = 0;
    open_run(&r, &c, 1, 0);
    go(&r, &t, 0, 3);
    save_run(&r, path);
    close_run(&r);
    static const change own[] = {
        { "loader.before", "1 624 0 0 00", "loader.before is '1 624 0 0 00'" },
        { "loader.before", NULL, "loader.before" },
        { "loader.generator", "1 625 0 0 00", "loader.generator is" },
        { "loader.generator", NULL, "loader.generator" },
        { "loader.samples", "25", "the sampler gives 25 samples an epoch in the file, 22 here" },
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        check_refused(&c, path, &own[i]);
    }
    c.own_sampler = false;
    check_refused(&c, path, &(change){ "scaler", "8 0 0", "a sampler of the program's own" });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_goes_on_anywhere, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_another_batch_size, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_hostile_places, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: loaders that go on", tests, NULL, NULL);
}
