/* Fuzzing train_net's configuration, as a file and as a value of the command line: any bytes end in
 * values that are written and read back to the same, or in an error that says where. */
#include "apps/tools/train_net/settings.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* What keys fill, and the keys. */
typedef struct filled {
    settings s;
    train_run r;
} filled;

static train_args *defaults(filled *f)
{
    memset(f, 0, sizeof *f);
    settings_keys(&f->s, &f->r);
    return &f->r.args;
}

static char *text_of(const train_args *keys, size_t *size)
{
    char *text;
    FILE *out = open_memstream(&text, size);
    if (out == NULL) {
        abort();
    }
    config_describe(keys, out);
    fclose(out);
    return text;
}

static void must_read_back(const train_args *keys)
{
    size_t size, again_size;
    char *text = text_of(keys, &size);
    filled f;
    train_args *again = defaults(&f);
    if (config_parse(again, "again.yaml", text, size) != TD_OK) {
        fprintf(stderr, "%s\n%s", td_last_error(), text);
        abort();
    }
    char *again_text = text_of(again, &again_size);
    if (size != again_size || memcmp(text, again_text, size) != 0) {
        fprintf(stderr, "--- written\n%s--- read back\n%s", text, again_text);
        abort();
    }
    free(text);
    free(again_text);
}

static void check(td_status status, const train_args *keys, const char *where)
{
    if (status == TD_OK) {
        must_read_back(keys);
    } else if (strncmp(td_last_error(), where, strlen(where)) != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const named[] = { "MODEL.WEIGHTS", "OPTIM.STEPS", "OPTIM.BASE_LR" };
    static filled f;
    train_args *keys = defaults(&f);
    check(config_parse(keys, "fuzz.yaml", bytes, size), keys, "fuzz.yaml");
    char *word = strndup((const char *)bytes, size);
    for (size_t i = 0; i < sizeof named / sizeof *named && word != NULL; i++) {
        defaults(&f);
        check(config_set(keys, "here", named[i], word), keys, "here: ");
    }
    free(word);
    return 0;
}
