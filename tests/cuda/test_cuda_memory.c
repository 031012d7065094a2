/* Tensors on a GPU, real or emulated: values in and out, orders and types, between devices, step
 * memory, what is refused. Without a GPU only what a machine without one shows. */
#include "autograd/autograd.h"
#include "data/data.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"
#include "tests/help/expect_fatal.h"
#include "tests/cuda/needs_gpu.h"
#include "tensor/backend.h"
#include "tensor/extend.h"
#include "tensor/f16.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if TD_EMULATED
#include "tensor/cuda/cuda.h"
void td_emulate_places(const td_cuda_walk *walk, int64_t i, int64_t place[3]);
#endif

static void test_the_refusal_names_what_is_missing(void **state)
{
    (void)state;
    td_device device;
    if (td_device_parse("cuda:15", &device) == TD_E_UNSUPPORTED) {
        assert_non_null(strstr(td_last_error(), "no CUDA kernels"));
        return;
    }
    const char *why = td_last_error();
    assert_true(strstr(why, "libcuda.so.1") != NULL || strstr(why, "driver") != NULL ||
                strstr(why, "there are") != NULL || strstr(why, "there is one GPU") != NULL);
}

static void test_values_go_in_and_come_out(void **state)
{
    NEEDS_GPU(0);
    const float values[] = { 1.5f, -2.0f, 3.25f, 0.0f, 1e20f, -7.0f };
    td_tensor *t = td_from(values, TD_SHAPE(2, 3), TD_F32, TD_CUDA);
    assert_non_null(t);
    float back[6] = { 0 };
    td_read(t, back, TD_F32);
    assert_memory_equal(back, values, sizeof values);
    double wide[6];
    td_read(t, wide, TD_F64);
    assert_true(wide[2] == 3.25 && wide[5] == -7.0);
    assert_true(td_get(t, (int64_t[]){ 1, 2 }) == -7.0);
    td_set(t, (int64_t[]){ 0, 1 }, 8.0);
    assert_true(td_get(t, (int64_t[]){ 0, 1 }) == 8.0);
    const int64_t whole[] = { -3, 300, 2, 0, 77, 1 };
    td_write(t, whole, TD_I64);
    td_tensor *bytes = td_clone_as(t, TD_U8, TD_CUDA);
    uint8_t small[6];
    td_read(bytes, small, TD_U8);
    assert_true(small[0] == 0 && small[1] == 255 && small[4] == 77);
    td_free(bytes);
    td_free(t);
}

/* Every pair of types, against the CPU's own copy. */
static void test_types_are_converted_as_on_the_cpu(void **state)
{
    NEEDS_GPU(0);
    double values[64];
    for (int i = 0; i < 64; i++) {
        values[i] = i == 7 ? NAN : i == 8 ? INFINITY : i == 9 ? -1e30 : (i - 20) * 17.3;
    }
    for (int from = 0; from < TD_DTYPE_COUNT; from++) {
        for (int to = 0; to < TD_DTYPE_COUNT; to++) {
            td_tensor *x = td_from(values, TD_SHAPE(8, 8), TD_F64, TD_CPU);
            td_tensor *here = td_clone_as(x, (td_dtype)from, TD_CPU);
            td_tensor *there = td_clone_as(here, (td_dtype)from, TD_CUDA);
            td_tensor *expected = td_clone_as(here, (td_dtype)to, TD_CPU);
            td_tensor *found = td_clone_as(there, (td_dtype)to, TD_CUDA);
            td_tensor *back = td_clone_as(found, (td_dtype)to, TD_CPU);
            size_t bytes = 64 * td_dtype_size((td_dtype)to);
            const char *a = td_data(expected), *b = td_data(back);
            for (size_t i = 0; i < bytes; i++) {
                if (a[i] != b[i]) {
                    print_error("%s to %s, byte %zu\n", td_dtype_name((td_dtype)from),
                                td_dtype_name((td_dtype)to), i);
                }
            }
            assert_memory_equal(a, b, bytes);
            td_tensor *all[] = { x, here, there, expected, found, back };
            for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
                td_free(all[i]);
            }
        }
    }
}

static void test_orders_follow_the_device(void **state)
{
    NEEDS_GPU(0);
    enum { COUNT = 2 * 3 * 4 * 5 };
    float values[COUNT], back[COUNT];
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)i;
    }
    td_shape shape = TD_SHAPE(2, 3, 4, 5);
    td_tensor *here = td_new_layout(shape, TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *there = td_new_layout(shape, TD_F32, TD_IMAGE, TD_CUDA);
    td_write(here, values, TD_F32);
    td_copy_(there, here); /* [H][W][N][C] to [N][H][W][C] */
    assert_true(there->stride[1] == 1 && there->stride[0] == 60);
    td_read(there, back, TD_F32);
    assert_memory_equal(back, values, sizeof values);
    td_fill_(here, 0.0);
    td_copy_(here, there);
    td_read(here, back, TD_F32);
    assert_memory_equal(back, values, sizeof values);
    /* Part of a tensor: every other column. */
    td_tensor *flat = td_from(values, TD_SHAPE(12, 10), TD_F32, TD_CUDA);
    td_tensor *part = td_slice_of_storage(flat, 1, TD_SHAPE(12, 5), (int64_t[]){ 10, 2 });
    td_read(part, back, TD_F32);
    for (int i = 0; i < 60; i++) {
        assert_true(back[i] == (float)(i / 5 * 10 + i % 5 * 2 + 1));
    }
    td_fill_(part, -1.0);
    td_read(flat, back, TD_F32);
    for (int i = 0; i < COUNT; i++) {
        assert_true(back[i] == (i % 2 == 1 ? -1.0f : (float)i));
    }
    td_tensor *all[] = { here, there, flat, part };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
}

static void test_devices_exchange_values(void **state)
{
    NEEDS_GPU(1);
    const td_device second = TD_CUDA_N(1);
    td_tensor *a = td_arange(1000, TD_F32, TD_CUDA);
    td_tensor *b = td_clone_as(a, TD_BF16, second);
    td_tensor *c = td_clone_as(b, TD_F32, TD_CUDA);
    float found[1000];
    td_fill_(a, -1.0); /* b was made before */
    td_read(c, found, TD_F32);
    for (int i = 0; i < 1000; i++) {
        assert_true(found[i] == td_bf16_to_f32(td_f32_to_bf16((float)i)));
    }
    td_copy_(a, c);
    td_fill_(c, 5.0);
    assert_true(td_get(a, (int64_t[]){ 100 }) == 100.0);
    td_free(a);
    td_free(b);
    td_free(c);
}

static void test_printing(void **state)
{
    NEEDS_GPU(0);
    char text[256] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    td_tensor *t = td_arange(3, TD_F32, TD_CUDA);
    td_print(t, out);
    fclose(out);
    assert_non_null(strstr(text, "[0.0000, 1.0000, 2.0000]"));
    assert_non_null(strstr(text, "f32[3] cuda:0"));
    td_free(t);
}

static void test_the_host_cannot_touch_it(void **state)
{
    NEEDS_GPU(0);
    td_tensor *t = td_zeros(TD_SHAPE(4), TD_F32, TD_CUDA);
    float values[4];
    assert_true(td_get(t, (int64_t[]){ 3 }) == 0.0);
    expect_fatal("memory that the host cannot touch", (void)td_data(t));
    expect_fatal("memory that the host cannot touch", (void)td_data_rw(t));
    expect_fatal("cuda:0 has memory of its own", td_borrow(values, TD_SHAPE(4), TD_F32, TD_CUDA));
    td_free(t);
}

/* The host may write again into what it has given, at once: larger than all pinned pieces. */
static void test_what_was_sent_stays_as_it_was(void **state)
{
    NEEDS_GPU(0);
    enum { COUNT = 17 << 20 };
    int32_t *values = malloc(COUNT * sizeof *values), *back = malloc(COUNT * sizeof *back);
    td_tensor *t = td_new(TD_SHAPE(COUNT), TD_I32, TD_CUDA);
    for (int i = 0; i < COUNT; i++) {
        values[i] = i * 7;
    }
    td_write(t, values, TD_I32);
    memset(values, 0, COUNT * sizeof *values);
    td_read(t, back, TD_I32);
    for (int i = 0; i < COUNT; i++) {
        values[i] = i * 7;
    }
    assert_memory_equal(back, values, COUNT * sizeof *values);
    free(values);
    free(back);
    td_free(t);
}

/* Batches come to the device in their order, the last one of an epoch smaller. */
static void test_batches_come_to_the_device(void **state)
{
    NEEDS_GPU(0);
    enum { SAMPLE = 3 * 32 * 32 };
    td_dataset *data;
    assert_int_equal(td_synthetic_images(10, 1, &data), TD_OK);
    static float here[4 * SAMPLE], there[4 * SAMPLE];
    int64_t labels[4], same[4];
    for (int workers = 0; workers < 2; workers++) {
        td_loader_options o = { .dataset = data, .batch_size = 4, .workers = workers };
        td_loader *a = td_loader_open_at(o, TD_HERE);
        o.device = TD_CUDA;
        td_loader *b = td_loader_open_at(o, TD_HERE);
        assert_non_null(b);
        for (int epoch = 0; epoch < 2; epoch++) {
            td_batch x, y;
            while (td_loader_next(a, &x)) {
                assert_true(td_loader_next(b, &y));
                assert_true(td_same_device(td_device_of(y.x), TD_CUDA) && x.size == y.size);
                td_read(x.x, here, TD_F32);
                td_read(y.x, there, TD_F32);
                assert_memory_equal(here, there, (size_t)x.size * SAMPLE * sizeof(float));
                td_read(x.y, labels, TD_I64);
                td_read(y.y, same, TD_I64);
                assert_memory_equal(labels, same, (size_t)x.size * sizeof *labels);
            }
            assert_false(td_loader_next(b, &y));
        }
        td_loader_close(a);
        td_loader_close(b);
    }
    td_dataset_free(data);
}

/* A child of fork has no GPU, and says so; the parent keeps it. */
static void test_fork_is_refused(void **state)
{
    NEEDS_GPU(0);
    td_tensor *t = td_full(TD_SHAPE(1), 3.0, TD_F32, TD_CUDA);
    pid_t child = fork();
    if (child == 0) {
        td_device device;
        bool refused = td_device_parse("cuda:0", &device) == TD_E_DEVICE &&
                       strstr(td_last_error(), "forked") != NULL;
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(td_item(t) == 3.0);
    td_free(t);
}

/* A failure that was dealt with is not met again by a kernel later. */
static void test_failures_are_forgotten(void **state)
{
    NEEDS_GPU(0);
    td_device none;
    assert_int_equal(td_device_parse("cuda:15", &none), TD_E_DEVICE);
    assert_null(td_new(TD_SHAPE(1 << 20, 1 << 20), TD_F32, TD_CUDA));
    td_tensor *t = td_full(TD_SHAPE(3), 2.0, TD_F32, TD_CUDA);
    assert_true(td_get(t, (int64_t[]){ 2 }) == 2.0);
    td_free(t);
}

/* A step on a driver that can less (which only the emulated one shows). */
static void step_with(const char *driver)
{
    setenv("TANDEM_EMULATED_DRIVER", driver, 1);
    td_step_begin();
    td_tensor *x = td_step_new(TD_SHAPE(1 << 20), TD_F32, TD_ROW_MAJOR, TD_CUDA, TD_HERE);
    td_fill_(x, 5.0);
    assert_true(td_get(x, (int64_t[]){ (1 << 20) - 1 }) == 5.0);
    td_step_end();
    td_step_release_memory();
    unsetenv("TANDEM_EMULATED_DRIVER");
}

static void test_drivers_that_can_less(void **state)
{
    NEEDS_GPU(0);
    td_step_release_memory();
    step_with("no-peers");
    step_with("no-export");
    step_with("no-mapping");
}

#if TD_EMULATED
static void crash_now(void *arguments)
{
    (void)arguments;
    raise(SIGSEGV);
}

/* A kernel that crashes ends the program, also where cmocka would go on with the next test. */
static void test_a_crash_on_a_stream_ends_the_program(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        int none = 0;
        td_emulate_enqueue(NULL, crash_now, &none, sizeof none);
        (void)cudaStreamSynchronize(NULL);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* Beyond 2^31 elements: tests of whole kernels would take minutes, and many GB. */
static void test_places_far_away(void **state)
{
    (void)state;
    td_cuda_walk walk = { .ndim = 3, .shape = { 3, 1000003, 4097 } };
    int64_t strides[3][3] = { { 4097000000, 4097, 1 }, { 0, 1, 1000003 }, { 7, 0, 0 } };
    for (int k = 0; k < 3; k++) {
        for (int d = 0; d < 3; d++) {
            walk.stride[k][d] = strides[k][d];
        }
    }
    const int64_t at[] = { 5, 4097 * 1000, INT64_C(3000000000), INT64_C(3) * 1000003 * 4097 - 1 };
    for (int i = 0; i < 4; i++) {
        int64_t place[3], rest = at[i], index[3];
        for (int d = 2; d >= 0; d--) {
            index[d] = rest % walk.shape[d];
            rest /= walk.shape[d];
        }
        td_emulate_places(&walk, at[i], place);
        for (int k = 0; k < 3; k++) {
            assert_true(place[k] == index[0] * strides[k][0] + index[1] * strides[k][1] +
                                        index[2] * strides[k][2]);
        }
    }
}

/* Rows 2^30 bytes apart, of which the host has memory for the pages that are touched. */
static void test_rows_far_apart(void **state)
{
    NEEDS_GPU(0);
    td_tensor *all = td_new(TD_SHAPE((int64_t)3 << 30), TD_U8, TD_CUDA);
    assert_non_null(all);
    td_tensor *x = td_slice_of_storage(all, 0, TD_SHAPE(3, 2), (int64_t[]){ 1 << 30, 1 });
    td_tensor *y = td_new(TD_SHAPE(1, 2), TD_U8, TD_CUDA);
    td_tensor *last = td_from((int64_t[]){ 2, 2 }, TD_SHAPE(1, 2), TD_I64, TD_CUDA);
    td_fill_(x, 5.0);
    td_set(x, (int64_t[]){ 2, 1 }, 9.0);
    td_kernels_of(TD_CUDA)->gather(y, x, last, 0);
    assert_true(td_get(y, (int64_t[]){ 0, 0 }) == 5.0 && td_get(y, (int64_t[]){ 0, 1 }) == 9.0);
    td_tensor *tensors[] = { x, y, last, all };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        td_free(tensors[i]);
    }
}

/* More bytes than 32 bits can count; 4 GB of the host's memory, so in make test-long. */
static void test_copies_of_more_than_4_gigabytes(void **state)
{
    NEEDS_GPU(0);
    if (getenv("TANDEM_LONG") == NULL) {
        skip();
    }
    setenv("TANDEM_EMULATED_MEMORY", "10000", 1);
    int64_t n = ((int64_t)1 << 30) + 8;
    td_tensor *x = td_new(TD_SHAPE(n), TD_F32, TD_CUDA), *y = td_new(TD_SHAPE(n), TD_F32, TD_CUDA);
    assert_true(x != NULL && y != NULL);
    td_set(x, (int64_t[]){ n - 9 }, 3.0);
    td_copy_(y, x);
    assert_true(td_get(y, (int64_t[]){ n - 9 }) == 3.0);
    td_free(x);
    td_free(y);
    unsetenv("TANDEM_EMULATED_MEMORY");
}

/* Copies between two GPUs go directly. */
static void test_gpus_see_each_other(void **state)
{
    NEEDS_GPU(1);
    assert_true(have_gpu(0));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cudaSetDevice(i), cudaSuccess);
        assert_int_equal(cudaDeviceEnablePeerAccess(1 - i, 0), cudaErrorPeerAccessAlreadyEnabled);
    }
    (void)cudaGetLastError();
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
}

static void *release_in_a_thread(void *both)
{
    td_step_begin();
    td_fill_(td_step_new(TD_SHAPE(8), TD_F32, TD_ROW_MAJOR, TD_CUDA, TD_HERE), 5.0);
    td_step_end();
    (void)pthread_barrier_wait(both); /* the other may record */
    (void)pthread_barrier_wait(both); /* it does */
    td_step_release_memory();
    return both;
}

/* A thread that gives its step memory back waits until another one has recorded its step. */
static void test_memory_is_released_behind_a_recording(void **state)
{
    NEEDS_GPU(0);
    const td_graphs *graphs = td_backend_of(TD_CUDA)->graphs;
    pthread_barrier_t both;
    pthread_t thread;
    void *graph, *ended = NULL;
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, release_in_a_thread, &both), 0);
    (void)pthread_barrier_wait(&both);
    assert_int_equal(graphs->begin(TD_CUDA), TD_OK);
    (void)pthread_barrier_wait(&both);
    (void)usleep(20000);
    assert_int_equal(graphs->end(TD_CUDA, &graph), TD_OK);
    assert_int_equal(pthread_join(thread, &ended), 0);
    assert_ptr_equal(ended, &both);
    graphs->free(TD_CUDA, graph);
    assert_int_equal(pthread_barrier_destroy(&both), 0);
}

static void test_a_failing_driver_is_not_called_short_of_memory(void **state)
{
    NEEDS_GPU(0);
    td_step_release_memory();
    setenv("TANDEM_EMULATED_DRIVER", "no-create", 1);
    td_step_begin();
    expect_fatal("cuMemCreate: CUDA_ERROR_NOT_SUPPORTED",
                 td_step_new(TD_SHAPE(8), TD_F32, TD_ROW_MAJOR, TD_CUDA, TD_HERE));
    unsetenv("TANDEM_EMULATED_DRIVER");
}
#endif

/* Equal steps: equal addresses, and memory that does not grow after the first. */
static void test_step_memory(void **state)
{
    NEEDS_GPU(0);
    td_memory_stats first = { 0 };
    for (int step = 0; step < 4; step++) {
        td_step_begin();
        td_tensor *x = NULL;
        for (int i = 0; i < 40; i++) {
            int64_t scope = td_scope_begin();
            x = td_step_new(TD_SHAPE(1 << 20), TD_F32, TD_ROW_MAJOR, TD_CUDA, TD_HERE);
            td_fill_(x, i);
            td_scope_end(scope, i % 3 == 0 ? x : NULL);
        }
        x = td_step_new(TD_SHAPE(5), TD_F32, TD_ROW_MAJOR, TD_CUDA, TD_HERE);
        assert_int_equal((uintptr_t)td_ptr(x) % 256, 0);
        td_memory_stats now = td_step_memory(TD_CUDA);
        td_step_end();
        if (step == 0) {
            first = now;
            assert_true(now.reserved >= now.peak && now.peak >= (size_t)14 << 22);
        }
        assert_int_equal(now.address_hash, first.address_hash);
        assert_int_equal(now.growths, first.growths);
    }
    td_step_release_memory();
}

/* x [4,8] of ones; w [8,8], of which all elements are one value: also as a filter. */
static void assert_products(td_tensor *x, td_tensor *w, double value)
{
    td_tensor *y = td_linear(x, w, NULL);
    td_tensor *image =
        td_conv2d(td_reshape(x, TD_SHAPE(4, 8, 1, 1)), td_reshape(w, TD_SHAPE(8, 8, 1, 1)), NULL);
    assert_int_equal(y->dtype, TD_BF16);
    assert_true(td_get(y, (int64_t[]){ 3, 7 }) == 8 * value);
    assert_true(td_get(image, (int64_t[]){ 3, 7, 0, 0 }) == 8 * value);
}

/* Products in 16 bits read a copy of the parameters. */
static void test_products_see_what_was_written(void **state)
{
    NEEDS_GPU(0);
    td_math before = td_math_now();
    td_set_math((td_math){ .precision = TD_PRECISION_BF16 });
    td_tensor *x = td_full(TD_SHAPE(4, 8), 1.0, TD_F32, TD_CUDA);
    td_tensor *w = td_full(TD_SHAPE(8, 8), 0.5, TD_F32, TD_CUDA);
    td_requires_grad(w, true);
    TD_STEP {
        assert_products(x, w, 0.5);
        td_fill_(w, 0.25);
        assert_products(x, w, 0.25);
    }
    td_fill_(w, 2.0);
    TD_STEP {
        assert_products(x, w, 2.0);
    }
    td_set_math(before);
    td_free(w);
    td_free(x);
}

static void test_running_out_says_what_would_fit(void **state)
{
    NEEDS_GPU(0);
    td_tensor *t = td_new(TD_SHAPE(1 << 20, 1 << 20), TD_F32, TD_CUDA);
    assert_null(t);
    assert_non_null(strstr(td_last_error(), "out of memory: 4.0 TiB on cuda:0"));
    assert_non_null(strstr(td_last_error(), "are free"));
    td_step_begin();
    expect_fatal("out of step memory for",
                 td_step_new(TD_SHAPE(1 << 20, 1 << 20), TD_F32, TD_ROW_MAJOR, TD_CUDA, TD_HERE));
    td_step_abandon();
    td_step_release_memory();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_refusal_names_what_is_missing),
        cmocka_unit_test(test_values_go_in_and_come_out),
        cmocka_unit_test(test_types_are_converted_as_on_the_cpu),
        cmocka_unit_test(test_orders_follow_the_device),
        cmocka_unit_test(test_devices_exchange_values),
        cmocka_unit_test(test_printing),
        cmocka_unit_test(test_the_host_cannot_touch_it),
        cmocka_unit_test(test_what_was_sent_stays_as_it_was),
        cmocka_unit_test(test_batches_come_to_the_device),
        cmocka_unit_test(test_fork_is_refused),
        cmocka_unit_test(test_step_memory),
        cmocka_unit_test(test_products_see_what_was_written),
        cmocka_unit_test(test_running_out_says_what_would_fit),
        cmocka_unit_test(test_failures_are_forgotten),
        cmocka_unit_test(test_drivers_that_can_less),
#if TD_EMULATED
        cmocka_unit_test(test_a_crash_on_a_stream_ends_the_program),
        cmocka_unit_test(test_places_far_away),
        cmocka_unit_test(test_rows_far_apart),
        cmocka_unit_test(test_copies_of_more_than_4_gigabytes),
        cmocka_unit_test(test_gpus_see_each_other),
        cmocka_unit_test(test_memory_is_released_behind_a_recording),
        cmocka_unit_test(test_a_failing_driver_is_not_called_short_of_memory), /* the last: fatal
                                                                                   with a lock */
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
