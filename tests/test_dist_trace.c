/* The trace: valid JSON with every rank's lanes. */
#include "dist/trace.h"
#include "tests/ddp_job.h"
#include "tests/dist_procs.h"
#include "tests/golden.h"
#include "tests/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    enum { MOST = 1 << 20 };
    char *text = malloc(MOST);
    size_t size = fread(text, 1, MOST - 1, file);
    text[size] = '\0';
    fclose(file);
    return text;
}

static cJSON *parse(const char *path)
{
    char *text = read_file(path);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    free(text);
    return json;
}

/* The events of a process whose name begins so. phase "X": spans. */
static int count_events(const cJSON *trace, int rank, const char *phase, const char *name)
{
    int count = 0;
    const cJSON *event = NULL;
    cJSON_ArrayForEach(event, golden_get(trace, "traceEvents"))
    {
        count += golden_get(event, "pid")->valueint == rank &&
                 strcmp(golden_get(event, "ph")->valuestring, phase) == 0 &&
                 strncmp(golden_get(event, "name")->valuestring, name, strlen(name)) == 0;
    }
    return count;
}

static void test_spans_nest(void **state)
{
    (void)state;
    const char *path = temp_path("one.json");
    td_trace_begin("before it is on"); /* counts for nothing */
    td_trace_end();
    assert_int_equal(td_trace_open(path), TD_OK);
    td_trace_begin("outer");
    td_trace_begin("in\"ner\\ \n");
    td_trace_end();
    td_trace_end();
    td_trace_communication("bucket 0", 1.0, 1.5, 4096);
    assert_int_equal(td_trace_close(), TD_OK);
    assert_false(td_trace_on());

    cJSON *trace = parse(path);
    assert_int_equal(cJSON_GetArraySize(golden_get(trace, "traceEvents")), 6);
    assert_int_equal(count_events(trace, 0, "X", "outer"), 1);
    assert_int_equal(count_events(trace, 0, "X", "in\"ner\\ \n"), 1);
    const cJSON *event = NULL, *outer = NULL, *inner = NULL, *bucket = NULL;
    cJSON_ArrayForEach(event, golden_get(trace, "traceEvents"))
    {
        const char *name = golden_get(event, "name")->valuestring;
        outer = strcmp(name, "outer") == 0 ? event : outer;
        inner = strncmp(name, "in", 2) == 0 ? event : inner;
        bucket = strcmp(name, "bucket 0") == 0 ? event : bucket;
    }
    double begin = golden_number(outer, "ts"), end = begin + golden_number(outer, "dur");
    double inside = golden_number(inner, "ts");
    assert_true(begin <= inside && inside + golden_number(inner, "dur") <= end + 0.01);
    assert_true(golden_number(bucket, "dur") == 500000.0);
    assert_int_equal(golden_get(golden_get(bucket, "args"), "bytes")->valueint, 4096);
    cJSON_Delete(trace);
}

static void test_off_and_failing(void **state)
{
    (void)state;
    assert_int_equal(td_trace_open(NULL), TD_OK);
    assert_false(td_trace_on());
    assert_int_equal(td_trace_close(), TD_OK);
    assert_int_equal(td_trace_open(temp_path("no/such/folder.json")), TD_E_IO);
    assert_error_says("folder.json", "cannot be written", NULL);
}

static int run_ranks(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    REQUIRE_OK(td_trace_open(arg));
    ddp_job job;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&job, JOB_MLP, TD_F32, &options, rank * 4, rank * 4 + 4);
    for (int i = 0; i < 3; i++) {
        job_step(&job);
    }
    job_close(&job);
    REQUIRE_OK(td_trace_close());
    td_dist_destroy();
    return 0;
}

static void test_ranks_are_put_together(void **state)
{
    (void)state;
    char path[512], part[512];
    snprintf(path, sizeof path, "%s", temp_path("all.json"));
    snprintf(part, sizeof part, "%s", temp_path("all.rank1.json"));
    procs_succeed(3, 60.0, run_ranks, path);
    cJSON *trace = parse(path);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(count_events(trace, rank, "M", "process_name"), 1);
        assert_int_equal(count_events(trace, rank, "M", "thread_name"), 2);
        assert_int_equal(count_events(trace, rank, "X", "forward"), 3);
        assert_int_equal(count_events(trace, rank, "X", "backward"), 3);
        assert_true(count_events(trace, rank, "X", "bucket") >= 3);
    }
    cJSON_Delete(trace);
    assert_int_equal(access(part, F_OK), -1);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_spans_nest),
        IN_FOLDER(test_off_and_failing),
        IN_FOLDER(test_ranks_are_put_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
