/* The reader of choices (td_autotune_take, for checkpoints and other ranks) against invented text:
 * all of a text is taken over, or nothing. What is taken over is written again, and read again. */
#include "tensor/tune/tune.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mine[] = "tandem-choices 1\nchoice 2 mine\n{}\nend\n";
    size_t bytes = 0, again_bytes = 0;
    td_set_autotune(true);
    require(td_autotune_take(mine, sizeof mine - 1) == TD_OK);
    td_status status = td_autotune_take((const char *)data, size);
    char *text = td_autotune_text(&bytes);
    require(text != NULL);
    require(status == TD_OK || strcmp(text, mine) == 0);
    require(td_autotune_take(text, bytes) == TD_OK);
    char *again = td_autotune_text(&again_bytes);
    require(again != NULL && again_bytes == bytes && memcmp(again, text, bytes) == 0);
    free(again);
    free(text);
    return 0;
}
