/* The wine set: a CSV file, split and standardised as scikit-learn does it. */
#include "data/parse.h"
#include "tensor/system/folders.h"

#include <string.h>
#include <unistd.h>

enum { COLUMNS = 14, CLASSES = 3 };

static const char *const class_names[CLASSES] = { "class_0", "class_1", "class_2" };

static td_status open_wine(const char *path, td_dataset **wine)
{
    char shared[TD_SHARED_PATH];
    if (strcmp(path, "data/wine.csv") == 0 && access(path, F_OK) != 0 &&
        td_shared_file("wine.csv", path, shared)) { /* the lessons' path, from another folder */
        path = shared;
    }
    td_csv_rules rules = { .options = { .path = path }, .columns = COLUMNS, .classes = CLASSES };
    td_csv_table table;
    td_status status = td_csv_read(&rules, &table);
    TD_CHECK(status != TD_E_NOTFOUND && status != TD_E_IO, status,
             "%s. tandem's source has the file as data/wine.csv, and `make install` brings it",
             td_last_error());
    TD_TRY(status);
    *wine = table.header ? td_csv_rows("wine", &table, false) : NULL;
    if (*wine != NULL) {
        (*wine)->classes = CLASSES;
        (*wine)->class_names = class_names;
    } else {
        status =
            table.header
                ? TD_E_NOMEM
                : td_fail(TD_E_FORMAT,
                          "%s:1: expected a header line (alcohol,...,target), not numbers", path);
    }
    td_csv_table_free(&table);
    return status;
}

td_status td_wine_split(const char *csv_path, double test_size, uint32_t seed, td_dataset **train,
                        td_dataset **test, td_standard_scaler *scaler)
{
    td_dataset *wine = NULL;
    *train = *test = NULL;
    TD_TRY(open_wine(csv_path, &wine));
    td_status status = td_split(wine, test_size, seed, train, test);
    td_dataset_free(wine); /* the parts keep it */
    return status == TD_OK ? td_standardize(*train, *test, scaler) : status;
}
