/* The wine set: scikit-learn's split and scaler, the order of the articles' training, bad files. */
#include "data/data.h"
#include "data/parse.h"
#include "tests/help/golden.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

enum { ROWS = 178, TRAIN = 142, TEST = 36, FEATURES = 13, BATCH = 32 };

static const char csv[] = "data/wine.csv"; /* tests run in the repository's root */

/* Element i of an array of numbers, or of strings with numbers in hex. */
static double number(const cJSON *json, const char *key, int i)
{
    const cJSON *item = cJSON_GetArrayItem(golden_get(json, key), i);
    assert_non_null(item);
    return cJSON_IsString(item) ? strtod(item->valuestring, NULL) : item->valuedouble;
}

static void fetch_one(const td_dataset *dataset, int64_t index, float *x, int64_t *y)
{
    td_tensor *tx = td_borrow(x, TD_SHAPE(1, FEATURES), TD_F32, TD_CPU);
    td_tensor *ty = td_borrow(y, TD_SHAPE(1), TD_I64, TD_CPU);
    assert_int_equal(dataset->vtable->fetch(dataset, &index, 1, 0, tx, ty), TD_OK);
    td_free(tx);
    td_free(ty);
}

typedef struct wine_sets {
    td_dataset *train, *test;
    td_standard_scaler scaler;
} wine_sets;

static wine_sets open_wine(void)
{
    wine_sets sets;
    assert_int_equal(td_wine_split(csv, 0.2, 42, &sets.train, &sets.test, &sets.scaler), TD_OK);
    return sets;
}

static void close_wine(wine_sets *sets)
{
    td_dataset_free(sets->train);
    td_dataset_free(sets->test);
}

/* The rows of the file as they are. */
static td_csv_table read_table(void)
{
    FILE *file = fopen(csv, "rb");
    assert_non_null(file);
    char text[1 << 14];
    size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    td_csv_table table;
    assert_int_equal(
        td_csv_parse(&(td_csv_rules){ .columns = FEATURES + 1 }, text, size, csv, &table), TD_OK);
    return table;
}

static void test_sizes_and_first_row(void **state)
{
    (void)state;
    wine_sets sets = open_wine();
    assert_int_equal(sets.train->length, TRAIN);
    assert_int_equal(sets.test->length, TEST);
    assert_int_equal(sets.train->classes, 3);
    assert_true(td_shape_equal(sets.train->sample_shape, TD_SHAPE(FEATURES)));
    float x[FEATURES];
    int64_t label;
    fetch_one(sets.train, 0, x, &label); /* row 158 of the file */
    assert_int_equal(label, 2);
    assert_true(x[0] == 1.665292739868164f);
    assert_true(x[1] == -0.6084058880805969f);
    close_wine(&sets);
}

/* Every standardised value, from the rows that scikit-learn puts in this place and its scaler. */
static void check_rows(const td_dataset *dataset, const cJSON *split, const char *key,
                       const td_csv_table *table)
{
    for (int i = 0; i < dataset->length; i++) {
        float x[FEATURES];
        int64_t label, row = (int64_t)number(split, key, i);
        fetch_one(dataset, i, x, &label);
        assert_int_equal(label, (int64_t)table->labels[row]);
        for (int f = 0; f < FEATURES; f++) {
            double mean = number(split, "mean_hex", f), scale = number(split, "scale_hex", f);
            assert_true(x[f] == (float)((table->values[row * FEATURES + f] - mean) / scale));
        }
    }
}

static void test_split_equals_scikit_learn(void **state)
{
    (void)state;
    cJSON *split = golden_open("wine_split.json");
    if (split == NULL) {
        skip();
    }
    wine_sets sets = open_wine();
    td_csv_table table = read_table();
    assert_int_equal(table.rows, ROWS);
    assert_int_equal(sets.scaler.features, FEATURES);
    for (int f = 0; f < FEATURES; f++) {
        assert_true(sets.scaler.mean[f] == number(split, "mean_hex", f));
        assert_true(sets.scaler.scale[f] == number(split, "scale_hex", f));
    }
    check_rows(sets.train, split, "train_index", &table);
    check_rows(sets.test, split, "test_index", &table);
    float x[FEATURES];
    int64_t label;
    fetch_one(sets.test, 0, x, &label);
    for (int f = 0; f < FEATURES; f++) {
        assert_true(x[f] == (float)number(split, "xtest0_std_float32", f));
    }
    td_csv_table_free(&table);
    close_wine(&sets);
    cJSON_Delete(split);
}

/* Draws what initialising Linear(13,64) and Linear(64,3) draws. */
static void draw_initial_weights(void)
{
    td_shape shapes[] = { TD_SHAPE(64, 13), TD_SHAPE(64), TD_SHAPE(3, 64), TD_SHAPE(3) };
    for (int i = 0; i < 4; i++) {
        td_tensor *t = td_new(shapes[i], TD_F32, TD_CPU);
        assert_non_null(t);
        td_uniform_(t, -1, 1, td_default_generator());
        td_free(t);
    }
}

static void check_order(int workers, const cJSON *epochs)
{
    static const int64_t first[] = { 102, 92, 21, 39, 108, 98, 64, 86, 113, 89 };
    wine_sets sets = open_wine();
    td_manual_seed(0);
    draw_initial_weights();
    td_loader *loader =
        td_loader_open(sets.train, .batch_size = BATCH, .shuffle = true, .workers = workers);
    assert_non_null(loader);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            for (int64_t i = 0; i < batch.size; i++, seen++) {
                if (epoch == 0 && seen < 10) {
                    assert_int_equal(batch.samples[i], first[seen]);
                }
                if (epochs != NULL) {
                    const cJSON *order = cJSON_GetArrayItem(epochs, epoch);
                    assert_int_equal(batch.samples[i],
                                     (int64_t)cJSON_GetArrayItem(order, seen)->valuedouble);
                }
            }
        }
        assert_int_equal(td_loader_status(loader), TD_OK);
        assert_int_equal(seen, TRAIN);
    }
    td_loader_close(loader);
    close_wine(&sets);
}

static void test_order_begins_as_pytorch(void **state)
{
    (void)state;
    check_order(0, NULL);
}

static void test_order_equals_pytorch(void **state)
{
    (void)state;
    cJSON *json = golden_open("golden_wine.json");
    if (json == NULL) {
        skip();
    }
    const cJSON *epochs = golden_get(json, "order_first3epochs");
    assert_int_equal(cJSON_GetArraySize(epochs), 3);
    for (int workers = 0; workers <= 2; workers++) {
        check_order(workers, epochs);
    }
    cJSON_Delete(json);
}

/* ---- bad files ---- */

#define HEADER "a,b,c,d,e,f,g,h,i,j,k,l,m,target\n"
#define ROW "1,2,3,4,5,6,7,8,9,10,11,12,13,1\n"

typedef struct bad_case {
    const char *text;
    const char *says[3];
} bad_case;

static const bad_case bad_cases[] = {
    { "", { "bad.csv:1", "empty" } },
    { HEADER, { "bad.csv:1", "no rows" } },
    { ROW ROW, { "bad.csv:1", "header" } },
    { "a,b,target\n" ROW, { "bad.csv:1", "3 columns", "expected 14" } },
    { HEADER ROW "1,2,3,4,5,6,7,8,9,10,11,12,1\n", { "bad.csv:3", "13 columns", "expected 14" } },
    { HEADER ROW "1,2,3,4,5,6,7,8,9,10,11,12,13,14,1\n", { "bad.csv:3", "15 columns" } },
    { HEADER "1,2,x3,4,5,6,7,8,9,10,11,12,13,1\n", { "bad.csv:2", "column 3", "'x3'" } },
    { HEADER "1,2,3,4,,6,7,8,9,10,11,12,13,1\n", { "bad.csv:2", "column 5", "''" } },
    { HEADER "1,2,3,4,5,6,7,8,9,10,11,12,nan,1\n", { "bad.csv:2", "column 13", "'nan'" } },
    { HEADER "1,2,3,1e999,5,6,7,8,9,10,11,12,13,1\n", { "bad.csv:2", "column 4", "'1e999'" } },
    { HEADER ROW ROW "1,2,3,4,5,6,7,8,9,10,11,12,13,3\n", { "bad.csv:4", "target is 3", "0, 1" } },
    { HEADER "1,2,3,4,5,6,7,8,9,10,11,12,13,-1\n", { "bad.csv:2", "target is -1" } },
    { HEADER "1,2,3,4,5,6,7,8,9,10,11,12,13,0.5\n", { "bad.csv:2", "target is 0.5" } },
};

static void test_bad_files(void **state)
{
    (void)state;
    td_dataset *train, *test;
    for (size_t i = 0; i < sizeof bad_cases / sizeof *bad_cases; i++) {
        const bad_case *c = &bad_cases[i];
        temp_write("bad.csv", c->text, strlen(c->text));
        assert_int_equal(td_wine_split(temp_path("bad.csv"), 0.2, 42, &train, &test, NULL),
                         TD_E_FORMAT);
        assert_error_says(c->says[0], c->says[1], c->says[2], NULL);
        assert_null(train);
        assert_null(test);
    }
    const char zero[] = HEADER "1,2,3,4,5,6,7,8,9,10,11,12,1\0003,1\n";
    temp_write("bad.csv", zero, sizeof zero - 1);
    assert_int_equal(td_wine_split(temp_path("bad.csv"), 0.2, 42, &train, &test, NULL),
                     TD_E_FORMAT);
    assert_error_says("bad.csv:2", "column 13", NULL);
}

static void test_no_such_file_and_bad_share(void **state)
{
    (void)state;
    td_dataset *train, *test;
    assert_int_equal(td_wine_split(temp_path("absent.csv"), 0.2, 42, &train, &test, NULL),
                     TD_E_NOTFOUND);
    assert_error_says("absent.csv", "data/wine.csv", NULL);
    assert_int_equal(td_wine_split(temp_folder(), 0.2, 42, &train, &test, NULL), TD_E_IO);
    const double shares[] = { 0, 1, -0.5, 2, 0.0 / 0.0 };
    for (int i = 0; i < 5; i++) {
        assert_int_equal(td_wine_split(csv, shares[i], 42, &train, &test, NULL), TD_E_ARG);
        assert_error_says("between 0 and 1", NULL);
    }
    temp_write("one.csv", HEADER ROW, strlen(HEADER ROW));
    assert_int_equal(td_wine_split(temp_path("one.csv"), 0.2, 42, &train, &test, NULL), TD_E_ARG);
    assert_error_says("none to train with", NULL);
}

/* Line ends of other systems, a byte order mark, blanks and no newline at the end are fine; a
 * feature that never changes is centred and not divided by nothing. */
static void test_other_spellings(void **state)
{
    (void)state;
    const char text[] = "\xef\xbb\xbf"
                        "a,b,c,d,e,f,g,h,i,j,k,l,m,target\r\n"
                        "1, 2 ,3,4,5,6,7,8,9,10,11,12,13,1\r\n"
                        "3,2,3,4,5,6,7,8,9,10,11,12,1.3e1,2.0\r\n"
                        "5,2,3,4,5,6,7,8,9,10,11,12,13,0";
    temp_write("ok.csv", text, sizeof text - 1);
    td_dataset *train, *test;
    td_standard_scaler scaler;
    assert_int_equal(td_wine_split(temp_path("ok.csv"), 0.3, 0, &train, &test, &scaler), TD_OK);
    assert_int_equal(train->length, 2);
    assert_int_equal(test->length, 1);
    assert_true(scaler.mean[1] == 2.0 && scaler.scale[1] == 1.0);
    float x[FEATURES];
    int64_t label;
    fetch_one(train, 0, x, &label);
    assert_true(x[0] == 1.0f || x[0] == -1.0f); /* two values: one deviation from their mean */
    assert_true(x[1] == 0.0f);
    td_dataset_free(train);
    td_dataset_free(test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_and_first_row),
        cmocka_unit_test(test_split_equals_scikit_learn),
        cmocka_unit_test(test_order_begins_as_pytorch),
        cmocka_unit_test(test_order_equals_pytorch),
        cmocka_unit_test_setup_teardown(test_bad_files, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_no_such_file_and_bad_share, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_other_spellings, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: wine", tests, NULL, NULL);
}
