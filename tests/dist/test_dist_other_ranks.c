/* What each rank has of its own (gradients in an accumulation, PowerSGD's errors), in a checkpoint
 * that goes on on another number of ranks: each has the mean of what the ranks had. */
#include "dist/ddp/codec.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double limit = 60.0;

/* ---- gradients ---- */

typedef struct model {
    td_module *net;
    td_optim *optim;
} model;

static model make_model(bool wrapped)
{
    model m = { .net = td_nn_sequential(td_nn_linear(1, 1), td_nn_linear(1, 1)) };
    m.net = wrapped ? td_ddp(m.net) : m.net;
    m.optim = td_sgd(td_parameters(m.net), .lr = 1);
    REQUIRE(m.net != NULL && m.optim != NULL);
    td_fill_(td_params_flat(td_parameters(m.net)), 1.0);
    return m;
}

static void free_model(model *m)
{
    td_optim_free(m->optim);
    td_module_free(m->net);
}

/* The gradient of the first weight grows by x, that of the last bias by 1. */
static void add_gradient(const model *m, double x)
{
    td_tensor *in = td_full(TD_SHAPE(1, 1), x, TD_F32, TD_CPU);
    TD_STEP {
        td_backward(td_mean(td_forward(m->net, in)));
    }
    td_free(in);
}

static void require_gradients(const model *m, double weight, double bias)
{
    const td_tensor *first = td_grad(m->net->children[0]->tensors[0].tensor);
    const td_tensor *last = td_grad(m->net->children[1]->tensors[1].tensor);
    REQUIRE(fabs(td_item(first) - weight) < 1e-5 && fabs(td_item(last) - bias) < 1e-5);
}

/* Rank r has r + 1, of one batch. */
static int save_gradients(int rank, int size, void *path)
{
    procs_init(rank, size, 20.0);
    model m = make_model(true);
    REQUIRE(!td_saves_together(m.net));
    td_ddp_no_sync_begin(m.net);
    add_gradient(&m, rank + 1);
    td_ddp_no_sync_end(m.net);
    REQUIRE(td_saves_together(m.net));
    REQUIRE_OK(td_checkpoint_save(path, m.net, .optim = m.optim));
    free_model(&m);
    td_dist_destroy();
    return 0;
}

static void load_and_go_on(model *m, const char *path, double mine)
{
    REQUIRE_OK(td_checkpoint_load(path, m->net, .optim = m->optim));
    require_gradients(m, mine, 1);
    add_gradient(m, 10);
    require_gradients(m, 12.5, 2);
    td_optim_step(m->optim);
    REQUIRE(fabs(td_item(m->net->children[0]->tensors[0].tensor) + 11.5) < 1e-5);
}

static int load_gradients(int rank, int size, void *path)
{
    procs_init(rank, size, 20.0);
    model m = make_model(true);
    load_and_go_on(&m, path, size == 4 ? rank + 1 : 2.5);
    free_model(&m);
    td_dist_destroy();
    return 0;
}

static void test_in_an_accumulation(void **state)
{
    (void)state;
    char *path = strdup(temp_path("gradients"));
    procs_succeed(4, limit, save_gradients, path);
    for (int size = 1; size <= 4; size++) {
        procs_succeed(size, limit, load_gradients, path);
    }
    model alone = make_model(false);
    load_and_go_on(&alone, path, 2.5);
    free_model(&alone);
    free(path);
}

/* Of one process: on any number of ranks each has it, so that their mean is the same. */
static void test_begun_alone(void **state)
{
    (void)state;
    char *path = strdup(temp_path("gradients"));
    model alone = make_model(false);
    add_gradient(&alone, 2.5);
    assert_int_equal(td_checkpoint_save(path, alone.net, .optim = alone.optim), TD_OK);
    free_model(&alone);
    for (int size = 1; size <= 3; size++) {
        procs_succeed(size, limit, load_gradients, path);
    }
    free(path);
}

/* ---- PowerSGD ---- */

typedef struct power_case {
    char from[512], to[512]; /* from "": it trains */
    int rank;
} power_case;

static int run_powersgd(int rank, int size, void *arg)
{
    const power_case *c = arg;
    procs_init(rank, size, 20.0);
    ddp_job job;
    job_open(&job, JOB_MLP, TD_F32,
             &(td_ddp_options){ .codec = td_powersgd(.rank = c->rank, .start = 1) }, 4 * rank,
             4 * rank + 4);
    if (c->from[0] != '\0') {
        REQUIRE_OK(td_checkpoint_load(c->from, job.net, .optim = job.optim));
    }
    for (int step = 0; step < 3 && c->from[0] == '\0'; step++) {
        (void)job_step(&job);
    }
    REQUIRE(td_saves_together(job.net));
    REQUIRE_OK(td_checkpoint_save(c->to, job.net, .optim = job.optim));
    job_close(&job);
    td_dist_destroy();
    return 0;
}

static float *data_of(const td_safetensors *file, const char *name, int64_t *count)
{
    const td_safetensors_entry *e = td_safetensors_find(file, name);
    if (e == NULL) {
        fail_msg("no %s", name);
        return NULL;
    }
    float *data = malloc(e->bytes);
    assert_int_equal(td_safetensors_read(file, e, data), TD_OK);
    *count = (int64_t)(e->bytes / sizeof *data);
    return data;
}

/* An error's name: "extra.powersgd.error.RANK/RANKS.PATH". Returns false for other names. */
static bool is_error(const char *name, int *rank, int *ranks, const char **path)
{
    int used = 0;
    bool read = sscanf(name, "extra.powersgd.error.%d/%d.%n", rank, ranks, &used) == 2 && used > 0;
    *path = name + used;
    return read;
}

/* Each error of `to` is the mean of those of `from`; factors and steps are the same. */
static void check_means(const char *from_path, const char *to_path, int from_ranks)
{
    td_safetensors *from, *to;
    assert_int_equal(td_safetensors_open(from_path, &from), TD_OK);
    assert_int_equal(td_safetensors_open(to_path, &to), TD_OK);
    int errors = 0;
    for (int i = 0; i < td_safetensors_count(to); i++) {
        const char *name = td_safetensors_get(to, i)->name, *path;
        int rank, ranks;
        int64_t count = 0;
        float *here = data_of(to, name, &count);
        if (!is_error(name, &rank, &ranks, &path)) {
            float *there = data_of(from, name, &count);
            assert_memory_equal(here, there, (size_t)count * sizeof *here);
            free(there);
        }
        for (int r = 0; is_error(name, &rank, &ranks, &path) && r < from_ranks; r++) {
            char full[256];
            snprintf(full, sizeof full, "extra.powersgd.error.%d/%d.%s", r, from_ranks, path);
            float *there = data_of(from, full, &count);
            for (int64_t k = 0; k < count; k++) {
                here[k] -= there[k] / (float)from_ranks;
            }
            free(there);
            errors++;
        }
        for (int64_t k = 0; is_error(name, &rank, &ranks, &path) && k < count; k++) {
            assert_true(here[k] > -1e-6f && here[k] < 1e-6f);
        }
        free(here);
    }
    assert_true(errors > 0);
    td_safetensors_close(from);
    td_safetensors_close(to);
}

static void test_powersgd(void **state)
{
    (void)state;
    power_case first = { .rank = 2 }, then = { .rank = 2 };
    snprintf(first.to, sizeof first.to, "%s", temp_path("first"));
    snprintf(then.from, sizeof then.from, "%s", first.to);
    snprintf(then.to, sizeof then.to, "%s", temp_path("then"));
    procs_succeed(4, limit, run_powersgd, &first);
    for (int size = 1; size <= 3; size++) {
        procs_succeed(size, limit, run_powersgd, &then);
        check_means(first.to, then.to, 4);
    }
    then.rank = 1; /* of other factors: it begins again */
    procs_succeed(2, limit, run_powersgd, &then);
}

/* Files of 0.2.0 have "error.0." in place of "error.0/2.", and no fingerprint. */
static void test_powersgd_of_earlier_versions(void **state)
{
    (void)state;
    static const char begin[] = "extra.powersgd.error.";
    power_case first = { .rank = 2 }, then = { .rank = 2 };
    snprintf(first.to, sizeof first.to, "%s", temp_path("first"));
    snprintf(then.from, sizeof then.from, "%s", temp_path("old"));
    snprintf(then.to, sizeof then.to, "%s", temp_path("then"));
    procs_succeed(2, limit, run_powersgd, &first);
    size_t size;
    char *file = temp_read(first.to, &size);
    int names = 0;
    for (char *at = file + 8; (at = strstr(at, begin)) != NULL; names++) {
        char *slash = at + sizeof begin, *end = strchr(at, '"');
        memmove(slash, slash + 2, (size_t)(end + 1 - slash - 2)); /* the header stays as long */
        memset(end - 1, ' ', 2);
        at = end;
    }
    assert_true(names > 0);
    *strstr(file + 8, "tandem.fingerprint") = 'T'; /* a key that means nothing */
    temp_write("old", file, size);
    free(file);
    procs_succeed(2, limit, run_powersgd, &then);
    size_t other_size;
    char *one = temp_read(first.to, &size), *other = temp_read(then.to, &other_size);
    assert_int_equal(size, other_size);
    assert_memory_equal(one, other, size);
    free(one);
    free(other);
    procs_succeed(3, limit, run_powersgd, &then);
    check_means(first.to, then.to, 2);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_in_an_accumulation),
        IN_FOLDER(test_begun_alone),
        IN_FOLDER(test_powersgd),
        IN_FOLDER(test_powersgd_of_earlier_versions),
    };
    return cmocka_run_group_tests_name("dist: other numbers of ranks", tests, NULL, NULL);
}
