/* Fuzzing the wine CSV's parser: any bytes end in a table whose values are in range, or in an error
 * that names the file. */
#include "data/parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    td_wine_table table;
    if (td_wine_parse((const char *)bytes, size, "fuzz.csv", &table) != TD_OK) {
        if (strncmp(td_last_error(), "fuzz.csv:", 9) != 0) {
            abort();
        }
        return 0;
    }
    for (int64_t row = 0; row < table.rows; row++) {
        for (int f = 0; f < TD_WINE_FEATURES; f++) {
            if (!isfinite(table.features[row][f])) {
                abort();
            }
        }
        if (table.labels[row] < 0 || table.labels[row] >= TD_WINE_CLASSES) {
            abort();
        }
    }
    td_wine_table_free(&table);
    return 0;
}
