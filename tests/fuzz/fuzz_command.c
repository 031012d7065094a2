/* Fuzzing what people and batch systems write on command lines and into the environment: options'
 * values by their kinds, the forms of --comm-hook, devices, lists of hosts. The first byte chooses
 * the reader: each takes the text and gives a value in range, or refuses it with a message. */
#include "apps/tools/common/train_args.h"
#include "dist/comm/launch/hostlist.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* A value that is taken is in range, and its text is read back to the same. */
static void fuzz_option(cli_kind kind, const char *text)
{
    int64_t whole = 1, whole_again = 0;
    double real = 1, real_again = 0;
    const char *word = NULL, *word_again = NULL;
    bool is_int = kind == CLI_INT, is_real = kind == CLI_REAL;
    cli_option option = { .name = "option", .kind = kind, .low = -1e15, .high = 1e15 };
    option.value = is_int ? (void *)&whole : is_real ? (void *)&real : (void *)&word;
    option.choices = kind == CLI_TEXT ? "one|two|three" : NULL;
    char message[512] = "", value[256];
    if (!cli_set(&option, text, message, sizeof message)) {
        require(message[0] != '\0');
        return;
    }
    cli_get(&option, value, sizeof value);
    option.value = is_int    ? (void *)&whole_again
                   : is_real ? (void *)&real_again
                             : (void *)&word_again;
    require(cli_set(&option, value, message, sizeof message));
    require(!is_int || (whole == whole_again && llabs(whole) <= 1000000000000000));
    require(!is_real || (real == real_again && real >= -1e15 && real <= 1e15));
    require(kind != CLI_TEXT || strcmp(word, word_again) == 0);
}

static void fuzz_hook(const char *text)
{
    train_hook hook = { .name = NULL };
    if (train_hook_read(text, &hook)) {
        require(hook.rank >= 0 && hook.rank <= 1024 && hook.start >= 0);
    }
}

static void fuzz_device(const char *text)
{
    td_device device;
    if (td_device_parse(text, &device) == TD_OK) {
        require(device.index >= 0);
    } else {
        require(td_last_error()[0] != '\0');
    }
}

static void fuzz_hosts(const char *text)
{
    char host[TD_HOST_BYTES];
    if (td_hostlist_first(text, host) == TD_OK) {
        require(host[0] != '\0' && strlen(host) < sizeof host);
    } else {
        require(td_last_error()[0] != '\0');
    }
    for (int i = 0; i < 4; i++) {
        (void)td_hostlist_count_at(text, i * i * 1000);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) {
        return 0;
    }
    char *text = strndup((const char *)bytes + 1, size - 1);
    require(text != NULL);
    switch (bytes[0] % 6) {
    case 0:
        fuzz_option(CLI_INT, text);
        break;
    case 1:
        fuzz_option(CLI_REAL, text);
        break;
    case 2:
        fuzz_option(CLI_TEXT, text);
        break;
    case 3:
        fuzz_hook(text);
        break;
    case 4:
        fuzz_device(text);
        break;
    default:
        fuzz_hosts(text);
    }
    free(text);
    return 0;
}
