/* Fuzzing token files: any bytes are refused with a message that names the file, or all their
 * tokens can be read. The first byte chooses the format. */
#include "data/text/token_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const names[] = { "fuzz.bin", "fuzz.txt" };
    enum { FORMATS = TD_TOKENS_U32 + 1 };
    int choice = size > 0 ? *bytes % (2 * FORMATS) : 0;
    bytes += size > 0;
    size -= size > 0;
    td_token_layout layout;
    if (td_token_layout_read(bytes, (int64_t)size, names[choice % 2], (td_token_format)(choice / 2),
                             &layout) != TD_OK) {
        if (strncmp(td_last_error(), "fuzz.", 5) != 0) {
            abort();
        }
        return 0;
    }
    uint64_t largest = 0;
    for (int64_t i = 0; i < layout.count; i++) {
        uint32_t token = td_token_at(bytes, &layout, i);
        largest = token > largest ? token : largest;
    }
    if (layout.offset + layout.count * layout.width != (int64_t)size ||
        largest >> 8 * layout.width != 0) {
        abort();
    }
    return 0;
}
