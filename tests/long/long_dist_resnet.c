/* ResNet-18 under DDP without batch statistics (evaluation-mode batch norm): 2 and 4 ranks against
 * one process on the joined batch, and bitwise equal weights after 50 steps. */
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SIDE = 16, EACH = 4 };

typedef struct resnet_case {
    td_dtype dtype;
    int steps;
    double lr;
    double tolerance; /* 0: not compared with one process */
} resnet_case;

static void open_resnet(ddp_job *job, bool wrapped, const resnet_case *c, int64_t from, int64_t to)
{
    td_manual_seed(0);
    job->net = td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    REQUIRE_OK(td_module_to(job->net, TD_CPU, c->dtype));
    job->net = wrapped ? td_ddp(job->net) : job->net;
    REQUIRE(job->net != NULL);
    td_eval(job->net);
    job->optim = td_sgd(td_parameters(job->net), .lr = c->lr, .momentum = 0.9, .weight_decay = 1e-4,
                        .nesterov = true);
    td_tensor *all = td_new(TD_SHAPE(16, 3, SIDE, SIDE), TD_F32, TD_CPU);
    td_generator g;
    td_generator_seed(&g, 4);
    td_normal_(all, 0.0, 1.0, &g);
    job->x = td_new_layout(TD_SHAPE(to - from, 3, SIDE, SIDE), c->dtype, TD_IMAGE, TD_CPU);
    job->y = td_new(TD_SHAPE(to - from), TD_I64, TD_CPU);
    REQUIRE(job->x != NULL && job->y != NULL);
    td_write(job->x, (const float *)td_data(all) + from * 3 * SIDE * SIDE, TD_F32);
    for (int64_t i = 0; i < to - from; i++) {
        td_set(job->y, &i, (double)((from + i) % 10));
    }
    td_free(all);
}

static int run_resnet(int rank, int size, void *arg)
{
    const resnet_case *c = arg;
    td_set_threads(TD_CPU, 1);
    procs_init(rank, size, 120.0);
    ddp_job mine, whole;
    open_resnet(&mine, true, c, rank * EACH, (rank + 1) * EACH);
    bool compares = c->tolerance > 0.0 && rank == 0;
    if (compares) {
        open_resnet(&whole, false, c, 0, size * EACH);
    }
    for (int i = 0; i < c->steps; i++) {
        double loss[1] = { job_step(&mine) };
        REQUIRE_OK(td_all_reduce_numbers(NULL, loss, 1));
        if (compares) {
            double expected = job_step(&whole);
            REQUIRE(fabs(loss[0] / size - expected) <= c->tolerance * fabs(expected));
        }
    }
    REQUIRE(job_all_same(job_hash(mine.net)));
    if (compares) {
        REQUIRE(job_distance(mine.net, whole.net, true) <= c->tolerance);
        job_close(&whole);
    }
    job_close(&mine);
    td_dist_destroy();
    return 0;
}

static void run_case(int size, resnet_case c)
{
    procs_succeed(size, 500.0, run_resnet, &c);
}

static void test_five_steps_equal_one_process(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size += 2) {
        /* Rounding moves values over a relu's corner, and large steps blow that up. */
        run_case(size, (resnet_case){ TD_F32, 5, 1e-3, 1e-5 });
        run_case(size, (resnet_case){ TD_F64, 5, 1e-2, 1e-12 });
    }
}

static void test_fifty_steps_leave_equal_bits(void **state)
{
    (void)state;
    run_case(2, (resnet_case){ TD_F32, 50, 1e-2, 0.0 });
    run_case(4, (resnet_case){ TD_F32, 50, 1e-2, 0.0 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_five_steps_equal_one_process),
        cmocka_unit_test(test_fifty_steps_leave_equal_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
