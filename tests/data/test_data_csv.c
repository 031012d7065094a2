/* CSV files as datasets: columns, labels, headers, quotes, and what is said of bad files. */
#include "data/data.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <cmocka.h>

static const char *file_of(const char *text)
{
    temp_write("a.csv", text, strlen(text));
    return temp_path("a.csv");
}

/* All samples: x as rows, then labels or targets. */
static int64_t read_all(const td_dataset *dataset, float *x, double *y)
{
    td_loader *loader = td_loader_open(dataset, .batch_size = dataset->length);
    td_batch batch;
    assert_true(td_loader_next(loader, &batch));
    assert_int_equal(batch.x->dtype, TD_F32);
    td_read(batch.x, x, TD_F32);
    td_read(batch.y, y, TD_F64);
    td_loader_close(loader);
    return dataset->length;
}

static void check(td_dataset *dataset, int features, const float *x, const double *y)
{
    float got_x[32];
    double got_y[8];
    if (dataset == NULL) {
        fail_msg("%s", td_last_error());
    }
    assert_int_equal(dataset->sample_shape.dim[0], features);
    int64_t n = read_all(dataset, got_x, got_y);
    for (int i = 0; i < n; i++) {
        assert_true(got_y[i] == y[i]);
    }
    for (int i = 0; i < n * features; i++) {
        assert_true(got_x[i] == x[i]);
    }
    td_dataset_free(dataset);
}

/* The same three samples in many spellings. */
static void test_spellings(void **state)
{
    (void)state;
    static const float x[] = { 1.5f, -2, 0.25f, 3e2f, 7, 8 };
    static const double y[] = { 1, 0, 1 };
    check(td_csv_dataset(file_of("1.5,-2,1\n0.25,3e2,0\n7,8,1\n")), 2, x, y);
    check(td_csv_dataset(file_of("a,b,class\r\n1.5,-2,1\r\n0.25,3e2,0\r\n7,8,1")), 2, x, y);
    check(td_csv_dataset(file_of("a;class;b\n1.5; 1 ;-2\n.25;0;\"300\"\n7;1.0;8\n"),
                         .separator = ';', .label = "class"),
          2, x, y);
    check(td_csv_dataset(file_of("\xef\xbb\xbf\"the class\", a, b\n1,1.5,-2\n0,.25,300\n1,7,8\n"),
                         .label = "the class"),
          2, x, y);
    check(td_csv_dataset(file_of("1\t1.5\t-2\n0\t.25\t300\n1\t7\t8\n"), .separator = '\t',
                         .label_column = 1),
          2, x, y);
    check(td_csv_dataset(file_of("0,1,class\n1.5,-2,1\n.25,300,0\n7,8,1\n")), 2, x, y);
    check(td_csv_dataset(file_of("0,1,2\n1.5,-2,1\n.25,300,0\n7,8,1\n"), .header = TD_CSV_HEADER),
          2, x, y);
    check(td_csv_dataset(file_of("1.5,-2,1\n.25,300,0\n7,8,1\n"), .header = TD_CSV_NO_HEADER), 2, x,
          y);
}

static void test_class_words(void **state)
{
    (void)state;
    static const float x[] = { 1, 2, 3 };
    static const double y[] = { 2, 0, 2 };
    td_dataset *d =
        td_csv_dataset(file_of("1,zebra\n2,\"a \"\"mad\"\" cat, old\"\n3,zebra\n4,dog\n"));
    assert_non_null(d);
    assert_int_equal(d->classes, 3);
    assert_string_equal(d->class_names[0], "a \"mad\" cat, old");
    assert_string_equal(d->class_names[1], "dog");
    assert_string_equal(d->class_names[2], "zebra");
    td_dataset *head = td_dataset_head(d, 3);
    check(head, 1, x, y);

    /* A test file that lacks classes, and one that has others. */
    td_dataset *test = td_csv_dataset(file_of("3,zebra\n"), .classes_of = d);
    check(test, 1, (const float[]){ 3 }, (const double[]){ 2 });
    assert_null(td_csv_dataset(file_of("3,zebra\n4,cow\n"), .classes_of = d));
    assert_error_says("a.csv:2: column 2", "'cow'", "3 classes", NULL);
    td_dataset_free(d);
}

static void test_class_numbers_of_another_file(void **state)
{
    (void)state;
    td_dataset *train = td_csv_dataset(file_of("1,0\n2,3\n"));
    assert_int_equal(train->classes, 4);
    assert_null(train->class_names);
    td_dataset *test = td_csv_dataset(file_of("5,1\n"), .classes_of = train);
    assert_int_equal(test->classes, 4);
    td_dataset_free(test);
    assert_null(td_csv_dataset(file_of("5,4\n"), .classes_of = train));
    assert_error_says("a.csv:1: column 2: the target is 4", "up to 3", NULL);
    td_dataset_free(train);
}

static void test_regression(void **state)
{
    (void)state;
    td_dataset *d = td_csv_dataset(file_of("x,price\n1,-2.5\n2,1e3\n"), .regression = true);
    assert_non_null(d);
    assert_true(d->target_dtype == TD_F32 && d->classes == 0);
    assert_true(td_shape_equal(d->target_shape, TD_SHAPE(1)));
    check(d, 1, (const float[]){ 1, 2 }, (const double[]){ -2.5, 1000 });
}

/* Lines of blanks are none, wherever they stand, and a line may end with \\r alone. */
static void test_blank_lines(void **state)
{
    (void)state;
    static const float x[] = { 1, 2, 3, 4 };
    static const double y[] = { 0, 1 };
    static const char *const texts[] = {
        "a,b,y\n1,2,0\n\n3,4,1\n",      "a,b,y\n1,2,0\n3,4,1\n\n\n",
        "a,b,y\n1,2,0\n3,4,1\n  \n",    "a,b,y\n1,2,0\n3,4,1\n \t",
        "\n \n\na,b,y\n1,2,0\n3,4,1\n", "a,b,y\n\n1,2,0\n3,4,1",
        "\xef\xbb\xbf\n1,2,0\n3,4,1\n", "a,b,y\r\n1,2,0\r\n\r\n3,4,1\r\n\r\n",
        "a,b,y\r1,2,0\r3,4,1\r",        "1,2,0\r\r3,4,1",
        "a,b,y\r\r\n1,2,0\r\r\n3,4,1",  "a,b,y\n1,2,0\r3,4,1\r\n\t\r",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check(td_csv_dataset(file_of(texts[i])), 2, x, y);
    }
    check(td_csv_dataset(file_of("1 2 0\n   \n3 4 1\n"), .separator = ' '), 2, x, y);
    check(td_csv_dataset(file_of("1\t2\t0\n\t\n3\t4\t1\n"), .separator = '\t'), 2, x, y);
    assert_null(td_csv_dataset(file_of("a,b,y\r\n\r\n \r\n1,x,0\r\n")));
    assert_error_says("a.csv:4: column 2", NULL);
}

typedef struct bad_case {
    const char *text;
    const char *says[3];
} bad_case;

static const bad_case bad_cases[] = {
    { "", { "a.csv:1", "empty" } },
    { "a,b\n", { "a.csv:1", "no rows" } },
    { "1\n2\n", { "a.csv:1", "one column", "separator" } },
    { "1,2\n3\n", { "a.csv:2", "1 columns", "expected 2" } },
    { "1,2\n\n3,4,5\n", { "a.csv:3", "3 columns", "expected 2" } },
    { "1,2\n3,4,5\n", { "a.csv:2", "3 columns", "expected 2" } },
    { "a,b\n1,0\nx,0\n", { "a.csv:3: column 1", "'x'", "finite" } },
    { "1,0\n\"1,0\n", { "a.csv:2", "1 columns" } },
    { "1,0\n1,\"0\n", { "a.csv:2: column 2", "open quote" } },
    { "1,0\n2,one\n", { "a.csv:2: column 2", "'one'" } },
    { "1,one\n2,\n", { "a.csv:2: column 2", "no class word" } },
    { "1,-1\n", { "a.csv:1: column 2", "target is -1" } },
    { "1,0.5\n", { "a.csv:1: column 2", "target is 0.5" } },
    { "1,1e9\n", { "a.csv:1: column 2", "target is 1e+09" } },
    { "\n \n\n", { "a.csv:1", "empty" } },
    { "a,b,y\n1,2,0\n,,\n", { "a.csv:3: column 1", "''", "it is empty" } },
    { "a,b,y\n1e39,2,0\n", { "a.csv:2: column 1", "'1e39'", "f32 holds" } },
    { "a,b,y\n1,-3.5E38,0\n", { "a.csv:2: column 2", "'-3.5E38'", "f32 holds" } },
    { "a,b,y\n1e999,2,0\n", { "a.csv:2: column 1", "'1e999'", "f32 holds" } },
    { "a,b,y\n1,2,1e39\n", { "a.csv:2: column 3", "'1e39'" } },
    { "a,b,y\n1,2,nan\n", { "a.csv:2: column 3", "'nan'", "finite" } },
    { "a,b,y\n0x10,2,0\n", { "a.csv:2: column 1", "'0x10'", "finite" } },
    { "a,b,y\n1_000,2,0\n", { "a.csv:2: column 1", "'1_000'", "finite" } },
    { "a,b,y\n\"1,000\",2,0\n", { "a.csv:2: column 1", "'1,000'", "finite" } },
    { "a,b,y\n1,2.5.1,0\n", { "a.csv:2: column 2", "'2.5.1'", "finite" } },
    /* In the first line, too: that is no header, which would hide it. */
    { "1e39,2,0\n3,4,1\n", { "a.csv:1: column 1", "f32 holds" } },
    { "nan,2,0\n3,4,1\n", { "a.csv:1: column 1", "finite" } },
    { "3,-inf,0\n3,4,1\n", { "a.csv:1: column 2", "finite" } },
    { "3,,0\n3,4,1\n", { "a.csv:1: column 2", "empty" } },
    { "?,4,0\n3,4,1\n", { "a.csv:1: column 1", "finite" } },
    { "NA,4,0\n3,4,1\n", { "a.csv:1: column 1", "finite" } },
    { "1_000,4,0\n3,4,1\n", { "a.csv:1: column 1", "finite" } },
};

static void test_bad_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_cases / sizeof *bad_cases; i++) {
        const bad_case *c = &bad_cases[i];
        assert_null(td_csv_dataset(file_of(c->text)));
        assert_error_says(c->says[0], c->says[1], c->says[2], NULL);
    }
    assert_null(td_csv_dataset(file_of("a,b\n1,2\n"), .label = "c"));
    assert_error_says("a.csv:1", "no column 'c'", "a, b", NULL);
    assert_null(td_csv_dataset(file_of("1,2\n"), .label_column = 3));
    assert_error_says("column 3", "there are 2", NULL);
    assert_null(td_csv_dataset(temp_path("absent.csv")));
    assert_error_says("absent.csv", "No such file", NULL);
    assert_null(td_csv_dataset(temp_folder()));
    assert_error_says("directory", NULL);
}

static void test_options_that_do_not_go_together(void **state)
{
    (void)state;
    expect_fatal("path is NULL", td_csv_dataset());
    expect_fatal("test_data_csv.c", td_csv_dataset());
    expect_fatal("one of both", td_csv_dataset("a.csv", .label = "a", .label_column = 2));
    expect_fatal("label_column -1", td_csv_dataset("a.csv", .label_column = -1));
    expect_fatal("no header", td_csv_dataset("a.csv", .label = "a", .header = TD_CSV_NO_HEADER));
}

/* A table with more rows and features than any buffer begins with. */
static void test_a_wide_and_long_file(void **state)
{
    (void)state;
    enum { COLUMNS = 785, LINES = 300 };
    FILE *file = fopen(temp_path("wide.csv"), "w");
    assert_non_null(file);
    for (int i = 0; i < LINES; i++) {
        for (int k = 0; k < COLUMNS - 1; k++) {
            fprintf(file, "%d,", (i + k) % 256);
        }
        fprintf(file, "%d\n", i % 10);
    }
    assert_int_equal(fclose(file), 0);
    td_dataset *d = td_csv_dataset(temp_path("wide.csv"));
    assert_non_null(d);
    assert_int_equal(d->length, LINES);
    float *x = malloc(sizeof *x * LINES * (COLUMNS - 1));
    double y[LINES];
    read_all(d, x, y);
    for (int i = 0; i < LINES; i++) {
        assert_true(y[i] == i % 10);
        assert_true(x[i * (COLUMNS - 1) + 783] == (float)((i + 783) % 256));
    }
    free(x);
    assert_int_equal(td_standardize(d, NULL, NULL), TD_OK);
    td_dataset_free(d);
}

/* So many columns that not all of them would be read. */
static void test_too_many_columns(void **state)
{
    (void)state;
    enum { MOST = 1 << 20 };
    char *text = malloc(2 * MOST + 3);
    assert_non_null(text);
    for (int i = 0; i <= MOST; i++) {
        memcpy(text + (size_t)2 * (size_t)i, "1,", 2);
    }
    text[2 * MOST + 1] = '\n';
    text[2 * MOST + 2] = '\0';
    assert_null(td_csv_dataset(file_of(text)));
    assert_error_says("a.csv:1: more than 1048576 columns", NULL);
    free(text);
}

/* Opening it would wait for a writer. */
static void test_a_fifo(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    assert_null(td_csv_dataset(temp_path("fifo")));
    assert_error_says("fifo", "not a regular file", NULL);
}

#define WITH_FOLDER(test)                                                                          \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_spellings),
        WITH_FOLDER(test_blank_lines),
        WITH_FOLDER(test_class_words),
        WITH_FOLDER(test_class_numbers_of_another_file),
        WITH_FOLDER(test_regression),
        WITH_FOLDER(test_bad_files),
        WITH_FOLDER(test_too_many_columns),
        WITH_FOLDER(test_a_fifo),
        cmocka_unit_test(test_options_that_do_not_go_together),
        WITH_FOLDER(test_a_wide_and_long_file),
    };
    return cmocka_run_group_tests_name("data: CSV", tests, NULL, NULL);
}
