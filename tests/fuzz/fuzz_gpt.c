/* The readers of other programs' GPTs against invented input: the first byte says whether the rest
 * is a config.json, or a model of llm.c or llama2.c. They refuse it with a message, or give a whole
 * model. */
#include "nn/models/files/gpt_source.h"
#include "tandem.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void read_model(const uint8_t *bytes, size_t size)
{
    FILE *file = tmpfile();
    require(file != NULL && fwrite(bytes, 1, size, file) == size && fflush(file) == 0);
    bool found;
    td_module *net = td_gpt_load_bin("model.bin", file, (int64_t)size, &found);
    require(net == NULL || found);
    require(net != NULL || !found || *td_last_error() != '\0');
    if (net != NULL) {
        require(td_parameter_count(net) * 4 <= (int64_t)size);
        td_module_free(net);
    }
    fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1) {
        return 0;
    }
    if (bytes[0] != '{') {
        read_model(bytes + 1, size - 1);
        return 0;
    }
    gpt_source s = { .llama = false };
    if (td_gpt_read_config((const char *)bytes, size, &s) != TD_OK) {
        require(*td_last_error() != '\0');
        return 0;
    }
    char text[TD_GPT_TEXT];
    td_gpt_options again;
    td_gpt_options_write(&s.options, text, sizeof text);
    require(td_gpt_options_read(text, &again) == TD_OK);
    require(td_gpt_options_complete(&again) == TD_OK && again.width == s.options.width);
    return 0;
}
