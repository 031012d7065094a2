/* Fuzzing the CSV parser: any bytes end in a table whose values are in range, or in an error that
 * names the file. The first byte chooses among the options. */
#include "data/parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const td_csv_table *t)
{
    for (int64_t i = 0; i < t->rows * t->features; i++) {
        if (!isfinite(t->values[i])) {
            abort();
        }
    }
    for (int64_t i = 0; i < t->rows && t->classes > 0; i++) {
        if (t->labels[i] < 0 || t->labels[i] >= t->classes) {
            abort();
        }
    }
    for (int i = 0; t->names != NULL && i < t->classes; i++) {
        if (t->names[i][0] == '\0' || (i > 0 && strcmp(t->names[i - 1], t->names[i]) >= 0)) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const td_csv_rules rules[] = {
        { .columns = 14, .classes = 3 },
        { .options = { .separator = ';' } },
        { .options = { .label = "class" } },
        { .options = { .label_column = 1, .header = TD_CSV_NO_HEADER } },
        { .options = { .regression = true } },
    };
    enum { RULES = sizeof rules / sizeof *rules };
    const td_csv_rules *rule = &rules[size > 0 ? bytes[0] % RULES : 0];
    td_csv_table table;
    if (td_csv_parse(rule, (const char *)bytes, size, "fuzz.csv", &table) != TD_OK) {
        if (strncmp(td_last_error(), "fuzz.csv:", 9) != 0) {
            abort();
        }
        return 0;
    }
    check(&table);
    td_csv_table_free(&table);
    return 0;
}
