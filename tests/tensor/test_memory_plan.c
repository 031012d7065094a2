/* The plan of step memory: what it says is what the arena has done. */
#include "tensor/observe/memory_plan.h"
#include "tests/help/temp_folder.h"
#include "tests/nn/train_job.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void record(train_job *job, int steps)
{
    td_memory_plan_start();
    for (int i = 0; i < steps; i++) {
        train_job_step(job);
    }
    td_memory_plan_stop();
}

static void test_agrees_with_the_arena(void **state)
{
    (void)state;
    train_job job;
    train_job_open(&job, 4, 16);
    record(&job, 2);
    td_memory_stats stats = td_step_memory(TD_CPU);
    td_memory_plan p = td_memory_plan_get();
    assert_int_equal(p.peak, stats.peak);
    assert_int_equal(p.block_count, stats.allocations);
    assert_true(p.extent >= p.peak && p.extent <= stats.reserved);
    assert_true(p.peak_op > 0 && p.peak_op < p.op_count);
    train_job_close(&job);
}

/* A step that is abandoned is no part of the next one. */
static void test_after_an_abandoned_step(void **state)
{
    (void)state;
    train_job job;
    train_job_open(&job, 4, 16);
    td_tensor *x = td_zeros(TD_SHAPE(1000), TD_F32, TD_CPU);
    td_memory_plan_start();
    td_step_begin();
    (void)td_relu(x);
    td_step_abandon();
    train_job_step(&job);
    td_memory_plan_stop();
    td_memory_stats stats = td_step_memory(TD_CPU);
    td_memory_plan p = td_memory_plan_get();
    assert_int_equal(p.peak, stats.peak);
    assert_int_equal(p.block_count, stats.allocations);
    td_free(x);
    train_job_close(&job);
}

/* Blocks that live at one time do not overlap. */
static void test_blocks_do_not_overlap(void **state)
{
    (void)state;
    train_job job;
    train_job_open(&job, 4, 16);
    record(&job, 1);
    td_memory_plan p = td_memory_plan_get();
    int scratch = 0, backward = 0;
    for (int i = 0; i < p.block_count; i++) {
        const td_memory_block *a = &p.blocks[i];
        assert_true(a->from >= 0 && a->from <= a->to && a->to < p.op_count);
        scratch += a->kind == TD_BLOCK_SCRATCH;
        backward += a->kind == TD_BLOCK_BACKWARD;
        for (int j = 0; j < i; j++) {
            const td_memory_block *b = &p.blocks[j];
            /* One may take the other's place for one and the same kernel. */
            bool together = a->from < b->to && b->from < a->to;
            bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
            assert_true(!together || apart);
        }
    }
    assert_true(scratch > 20 && backward > 20);
    train_job_close(&job);
}

/* y = relu(x w): x w is needed by nobody once y is there; y lives until its backward has run. */
static void test_lifetimes(void **state)
{
    (void)state;
    td_tensor *x = td_full(TD_SHAPE(100, 100), 1.0, TD_F32, TD_CPU);
    td_tensor *w = td_full(TD_SHAPE(100, 100), 1.0, TD_F32, TD_CPU);
    td_requires_grad(w, true);
    td_memory_plan_start();
    td_step_begin();
    int64_t scope = td_scope_begin();
    td_tensor *y = td_relu(td_matmul(x, w));
    td_scope_end(scope, y);
    td_backward(td_mean(y));
    td_step_end();
    td_memory_plan_stop();
    td_memory_plan p = td_memory_plan_get();
    int products = 0, relus = 0;
    for (int i = 0; i < p.block_count; i++) {
        const td_memory_block *b = &p.blocks[i];
        const char *kernel = p.ops[b->from].kernel;
        if (b->kind == TD_BLOCK_FORWARD && strcmp(kernel, "matmul") == 0 && b->bytes >= 40000) {
            assert_string_equal(p.ops[b->to].kernel, "unary");
            products++;
        } else if (b->kind == TD_BLOCK_FORWARD && strcmp(kernel, "unary") == 0) {
            assert_int_equal(b->to, p.op_count - 1);
            relus++;
        }
    }
    assert_int_equal(products, 1);
    assert_int_equal(relus, 1);
    td_free(x);
    td_free(w);
}

static void test_table_and_picture(void **state)
{
    (void)state;
    train_job job;
    train_job_open(&job, 4, 16);
    record(&job, 1);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    td_memory_plan_print(out, 1 << 10);
    fclose(out);
    assert_non_null(strstr(text, "\nstep memory: peak "));
    assert_non_null(strstr(text, "forward   conv2d              layer1.0.conv1 (Conv2d)\n"));
    assert_non_null(strstr(text, "backward  conv2d_grad_input   layer1.0.conv2 (Conv2d)\n"));
    free(text);

    assert_int_equal(td_memory_plan_draw(temp_path("plan.svg")), TD_OK);
    FILE *picture = fopen(temp_path("plan.svg"), "r");
    assert_non_null(picture);
    char line[512], last[512] = "";
    int rectangles = 0;
    while (fgets(line, sizeof line, picture) != NULL) {
        rectangles += strncmp(line, "<rect x=", 8) == 0;
        strcpy(last, line);
    }
    fclose(picture);
    assert_int_equal(rectangles, td_memory_plan_get().block_count);
    assert_string_equal(last, "</svg>\n");
    assert_int_equal(td_memory_plan_draw("/nowhere/plan.svg"), TD_E_IO);
    train_job_close(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_the_arena),
        cmocka_unit_test(test_after_an_abandoned_step),
        cmocka_unit_test(test_blocks_do_not_overlap),
        cmocka_unit_test(test_lifetimes),
        cmocka_unit_test_setup_teardown(test_table_and_picture, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
