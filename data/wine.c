/* The wine set: split and standardised as scikit-learn does it. */
#include "data/parse.h"
#include "tensor/extend.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = TD_WINE_FEATURES, LARGEST_FILE = 1 << 26 };

/* ---- the dataset: rows in memory ---- */

typedef struct wine_rows {
    td_dataset base;
    float (*features)[FEATURES]; /* [length] */
    int64_t *labels;             /* [length] */
} wine_rows;

static td_status rows_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                            uint64_t epoch, td_tensor *x, td_tensor *y)
{
    (void)epoch;
    const wine_rows *rows = (const wine_rows *)dataset;
    float *out = td_data_rw(x);
    int64_t *label = td_data_rw(y);
    for (int64_t i = 0; i < n; i++) {
        const float *row = rows->features[index[i]];
        for (int f = 0; f < FEATURES; f++) {
            out[i * x->stride[0] + f * x->stride[1]] = row[f];
        }
        label[i * y->stride[0]] = rows->labels[index[i]];
    }
    return TD_OK;
}

static void rows_free(td_dataset *dataset)
{
    wine_rows *rows = (wine_rows *)dataset;
    free(rows->features);
    free(rows->labels);
    free(rows);
}

static const td_dataset_vtable wine_vtable = { "wine", rows_fetch, rows_free };
static const char *const class_names[] = { "class_0", "class_1", "class_2" };

static wine_rows *rows_new(int64_t length)
{
    wine_rows *rows = calloc(1, sizeof *rows);
    if (rows == NULL) {
        return NULL;
    }
    rows->features = calloc((size_t)length, sizeof *rows->features);
    rows->labels = calloc((size_t)length, sizeof *rows->labels);
    if (rows->features == NULL || rows->labels == NULL) {
        rows_free(&rows->base);
        return NULL;
    }
    rows->base = (td_dataset){
        .vtable = &wine_vtable,
        .length = length,
        .sample_shape = TD_SHAPE(FEATURES),
        .dtype = TD_F32,
        .layout = TD_ROW_MAJOR,
        .classes = TD_WINE_CLASSES,
        .class_names = class_names,
    };
    return rows;
}

/* ---- split and scaler ---- */

void td_legacy_permutation(uint32_t seed, int64_t n, int64_t *order)
{
    td_generator g;
    td_generator_seed(&g, seed);
    for (int64_t i = 0; i < n; i++) {
        order[i] = i;
    }
    for (int64_t i = n - 1; i >= 1; i--) {
        uint32_t mask = UINT32_MAX >> __builtin_clz((uint32_t)i); /* smallest 2^k-1 >= i */
        int64_t j;
        do {
            j = td_random_u32(&g) & mask;
        } while (j > i);
        int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* Mean and population standard deviation of one feature over the given rows, summed in their order:
 * mean = sum(x)/n; var = (sum(d^2) - sum(d)^2/n)/n with d = x - mean. A feature that is constant up
 * to rounding gets scale 1. */
static void fit_feature(const td_wine_table *table, const int64_t *order, int64_t n, int feature,
                        td_standard_scaler *scaler)
{
    double count = (double)n, sum = 0, deviation = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += table->features[order[i]][feature];
    }
    double mean = sum / count;
    for (int64_t i = 0; i < n; i++) {
        double d = table->features[order[i]][feature] - mean;
        deviation += d;
        square += d * d;
    }
    double variance = (square - deviation * deviation / count) / count;
    double noise = count * mean * DBL_EPSILON;
    bool constant = variance <= count * DBL_EPSILON * variance + noise * noise;
    scaler->mean[feature] = mean;
    scaler->scale[feature] = constant ? 1.0 : sqrt(variance);
}

static wine_rows *standardise(const td_wine_table *table, const int64_t *order, int64_t n,
                              const td_standard_scaler *scaler)
{
    wine_rows *rows = rows_new(n);
    for (int64_t i = 0; rows != NULL && i < n; i++) {
        for (int f = 0; f < FEATURES; f++) {
            double centred = table->features[order[i]][f] - scaler->mean[f];
            rows->features[i][f] = (float)(centred / scaler->scale[f]);
        }
        rows->labels[i] = table->labels[order[i]];
    }
    return rows;
}

static td_status split(const td_wine_table *table, double test_size, uint32_t seed,
                       td_dataset **train, td_dataset **test, td_standard_scaler *scaler)
{
    int64_t tests = (int64_t)ceil(test_size * (double)table->rows);
    int64_t trains = table->rows - tests;
    if (trains < 1) {
        return td_fail(TD_E_ARG, "%lld rows with a test share of %g leave none to train with",
                       (long long)table->rows, test_size);
    }
    int64_t *order = malloc((size_t)table->rows * sizeof *order);
    if (order == NULL) {
        return td_fail(TD_E_NOMEM, "no memory to split %lld rows", (long long)table->rows);
    }
    td_legacy_permutation(seed, table->rows, order);
    scaler->features = FEATURES;
    for (int f = 0; f < FEATURES; f++) {
        fit_feature(table, order + tests, trains, f, scaler);
    }
    wine_rows *train_rows = standardise(table, order + tests, trains, scaler);
    wine_rows *test_rows = standardise(table, order, tests, scaler);
    free(order);
    if (train_rows == NULL || test_rows == NULL) {
        td_dataset_free((td_dataset *)train_rows);
        td_dataset_free((td_dataset *)test_rows);
        return td_fail(TD_E_NOMEM, "no memory for %lld rows", (long long)table->rows);
    }
    *train = &train_rows->base;
    *test = &test_rows->base;
    return TD_OK;
}

/* ---- the file ---- */

/* The whole file; the caller frees. */
static td_status read_text(const char *path, char **text, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        bool missing = errno == ENOENT;
        return td_fail(missing ? TD_E_NOTFOUND : TD_E_IO, "%s: %s.%s", path, strerror(errno),
                       missing ? " The file comes with tandem's source as data/wine.csv: give its "
                                 "path (--data)"
                               : "");
    }
    td_status status = TD_OK;
    size_t room = 1 << 16;
    *text = malloc(room);
    *size = 0;
    while (*text != NULL) {
        *size += fread(*text + *size, 1, room - *size, file);
        if (*size < room) {
            break;
        }
        room *= 2;
        char *larger = room <= LARGEST_FILE ? realloc(*text, room) : NULL;
        if (larger == NULL) {
            free(*text);
        }
        *text = larger;
    }
    if (*text == NULL) {
        status = td_fail(TD_E_FORMAT, "%s: too large for a table of wines (over %d MiB)", path,
                         LARGEST_FILE >> 21);
    } else if (ferror(file)) {
        status = td_fail(TD_E_IO, "%s: reading failed: %s%s", path, strerror(errno),
                         errno == EISDIR ? ". Give the file itself (--data): data/wine.csv comes "
                                           "with tandem's source"
                                         : "");
        free(*text);
    }
    fclose(file);
    return status;
}

td_status td_wine_split(const char *csv_path, double test_size, uint32_t seed, td_dataset **train,
                        td_dataset **test, td_standard_scaler *scaler)
{
    *train = *test = NULL;
    if (!(test_size > 0 && test_size < 1)) {
        return td_fail(TD_E_ARG, "a test share of %g; give a number between 0 and 1", test_size);
    }
    char *text = NULL;
    size_t size = 0;
    TD_TRY(read_text(csv_path, &text, &size));
    td_wine_table table;
    td_status status = td_wine_parse(text, size, csv_path, &table);
    free(text);
    TD_TRY(status);
    td_standard_scaler local;
    status = split(&table, test_size, seed, train, test, scaler != NULL ? scaler : &local);
    td_wine_table_free(&table);
    return status;
}
