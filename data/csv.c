/* A CSV file as a dataset. */
#include "data/dataset.h"
#include "data/parse.h"
#include "tensor/system/files.h"

#include <stdlib.h>

enum { LARGEST_MIB = 1 << 16 }; /* of a table */

td_status td_csv_read(const td_csv_rules *rules, td_csv_table *table)
{
    char *text;
    size_t size;
    const char *path = rules->options.path;
    TD_TRY(td_read_file(path, "a table", (int64_t)LARGEST_MIB << 20, &text, &size));
    td_status status = td_csv_parse(rules, text, size, path, table);
    free(text);
    return status;
}

td_dataset *td_csv_rows(const char *kind, td_csv_table *table, bool regression)
{
    int64_t rows = table->rows;
    td_tensor *x = td_from(table->values, TD_SHAPE(rows, table->features), TD_F64, TD_CPU);
    td_tensor *y = regression ? td_from(table->labels, TD_SHAPE(rows, 1), TD_F64, TD_CPU)
                              : td_new(TD_SHAPE(rows), TD_I64, TD_CPU);
    if (y != NULL && !regression) {
        td_write(y, table->labels, TD_F64);
    }
    td_rows *data = td_rows_new(kind, x, y);
    if (data == NULL) {
        return NULL;
    }
    data->base.dtype = TD_F32; /* the file's digits are kept for standardising */
    data->base.target_dtype = TD_F32;
    data->base.classes = table->classes;
    data->base.class_names = (const char *const *)table->names;
    data->names = table->names;
    table->names = NULL;
    return &data->base;
}

td_dataset *td_csv_dataset_at(td_csv_options options, td_site at)
{
    TD_REQUIRE(options.path != NULL, at, "td_csv_dataset: the path is NULL");
    TD_REQUIRE(options.label == NULL || options.label_column == 0, at,
               "td_csv_dataset: label '%s' and label_column %d; give one of both", options.label,
               options.label_column);
    TD_REQUIRE(options.label_column >= 0, at,
               "td_csv_dataset: label_column %d; columns are counted from 1 (0: the last one)",
               options.label_column);
    TD_REQUIRE(options.label == NULL || options.header != TD_CSV_NO_HEADER, at,
               "td_csv_dataset: label '%s' is the name of a column, and there is to be no header "
               "line; give label_column",
               options.label);
    td_csv_table table;
    if (td_csv_read(&(td_csv_rules){ .options = options }, &table) != TD_OK) {
        return NULL;
    }
    td_dataset *dataset = td_csv_rows("CSV file", &table, options.regression);
    td_csv_table_free(&table);
    return dataset;
}
