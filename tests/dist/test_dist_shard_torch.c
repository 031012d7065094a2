/* Losses of PyTorch's DistributedDataParallel and fully_shard, next to those of td_ddp in each way
 * of sharding: the same model, seeds, rows, and Adam. Needs a Python with a PyTorch that has
 * fully_shard (TANDEM_PYTHON; otherwise python3). */
#include "tests/help/dist_procs.h"
#include "tests/dist/shard_run.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, BLOCKS = 4, WIDTH = 64, ROWS = 16, STEPS = 20, PEERS = 2 };
static const double limit = 60.0;

static bool run_torch(const char *arguments, const char *path)
{
    const char *python = getenv("TANDEM_PYTHON");
    char command[8192];
    snprintf(command, sizeof command, "%s tests/dist/shard_torch.py %s '%s' >'%s' 2>&1",
             python != NULL ? python : "/usr/bin/python3", arguments, path, temp_path("log"));
    return system(command) == 0;
}

static td_module *new_blocks(void)
{
    td_module *list[BLOCKS];
    td_manual_seed(1);
    for (int i = 0; i < BLOCKS; i++) {
        list[i] = td_nn_sequential(td_nn_layer_norm(WIDTH), td_nn_linear(WIDTH, 4 * WIDTH),
                                   td_nn_gelu(), td_nn_linear(4 * WIDTH, WIDTH));
    }
    return td_nn_sequential_list(list, BLOCKS);
}

typedef struct peer {
    double losses[PEERS * STEPS];
} peer;

/* Rank 0's losses, in every way, are near those of both peers. */
static int run_losses(int rank, int size, void *arg)
{
    const peer *p = arg;
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
        bool gathers = way == SHARD_GATHERED;
        td_module *net =
            td_ddp(new_blocks(), .strategy = td_zero(gathers ? TD_SHARD_PARAMETERS : (td_shard)way,
                                                     .gathers = gathers));
        REQUIRE(net != NULL);
        td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
        td_tensor *x = td_new(TD_SHAPE(ROWS, WIDTH), TD_F32, TD_CPU);
        td_manual_seed(2 + (uint64_t)rank);
        td_normal_(x, 0.0, 1.0, td_default_generator());
        double first = 0.0, loss = 0.0;
        for (int i = 0; i < STEPS; i++) {
            TD_STEP {
                td_tensor *mean = td_mse_loss(td_forward(net, x), x);
                loss = td_item(mean);
                td_zero_grad(optim);
                td_backward(mean);
                td_optim_step(optim);
            }
            first = i == 0 ? loss : first;
            for (int k = 0; rank == 0 && k < PEERS; k++) {
                REQUIRE(fabs(loss - p->losses[k * STEPS + i]) < 1e-5);
            }
        }
        REQUIRE(loss < 0.9 * first); /* it learns */
        td_free(x);
        td_optim_free(optim);
        td_module_free(net);
    }
    td_dist_destroy();
    return 0;
}

static void test_losses_are_those_of_pytorch(void **state)
{
    (void)state;
    peer p;
    char arguments[128];
    if (!run_torch("have", "")) {
        print_message("# skipped: no Python with a PyTorch that has fully_shard (make "
                      "deps-bench-newest, or TANDEM_PYTHON)\n");
        skip();
    }
    snprintf(arguments, sizeof arguments, "train %d %d %d %d %d", RANKS, BLOCKS, WIDTH, ROWS,
             STEPS);
    if (!run_torch(arguments, temp_path("losses"))) {
        fail_msg("shard_torch.py failed:\n%s",
                 (const char *)temp_read(temp_path("log"), &(size_t){ 0 }));
    }
    FILE *file = fopen(temp_path("losses"), "r");
    assert_non_null(file);
    for (int i = 0; i < PEERS * STEPS; i++) {
        assert_int_equal(fscanf(file, "%lf", &p.losses[i]), 1);
    }
    fclose(file);
    procs_succeed(RANKS, limit, run_losses, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_losses_are_those_of_pytorch, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
