/* Fuzzing train_net's configuration, as a file and as a value of the command line: any bytes end in
 * values that are written and read back to the same, or in an error that says where. */
#include "apps/tools/train_net/settings.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static char *text_of(const settings *s, size_t *size)
{
    char *text;
    FILE *out = open_memstream(&text, size);
    if (out == NULL) {
        abort();
    }
    config_describe(s, out);
    fclose(out);
    return text;
}

static void must_read_back(const settings *s)
{
    size_t size, again_size;
    char *text = text_of(s, &size);
    settings again;
    config_defaults(&again);
    if (config_parse(&again, "again.yaml", text, size) != TD_OK) {
        fprintf(stderr, "%s\n%s", td_last_error(), text);
        abort();
    }
    char *again_text = text_of(&again, &again_size);
    if (size != again_size || memcmp(text, again_text, size) != 0) {
        fprintf(stderr, "--- written\n%s--- read back\n%s", text, again_text);
        abort();
    }
    free(text);
    free(again_text);
}

static void check(td_status status, const settings *s, const char *where)
{
    if (status == TD_OK) {
        must_read_back(s);
    } else if (strncmp(td_last_error(), where, strlen(where)) != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const named[] = { "MODEL.WEIGHTS", "OPTIM.STEPS", "OPTIM.BASE_LR" };
    settings s;
    config_defaults(&s);
    check(config_parse(&s, "fuzz.yaml", bytes, size), &s, "fuzz.yaml");
    char *word = strndup((const char *)bytes, size);
    for (size_t i = 0; i < sizeof named / sizeof *named && word != NULL; i++) {
        config_defaults(&s);
        check(config_set(&s, "here", named[i], word), &s, "here: ");
    }
    free(word);
    return 0;
}
