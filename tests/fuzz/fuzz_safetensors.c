/* The checkpoint parser against invented input: whatever the bytes, it refuses them with a message
 * or gives tensors that lie inside them. */
#include "tandem.h"
#include "nn/io/safetensors.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Reads every byte that the file says it has. */
static unsigned use(const td_safetensors *file)
{
    unsigned sum = 0;
    size_t total = 0;
    for (int i = 0; i < td_safetensors_count(file); i++) {
        const td_safetensors_entry *entry = td_safetensors_get(file, i);
        uint8_t *data = calloc(1, entry->bytes + 1);
        td_status expected = td_safetensors_unknown(file, entry) != NULL ? TD_E_UNSUPPORTED : TD_OK;
        require(data != NULL && td_safetensors_read(file, entry, data) == expected);
        for (size_t k = 0; k < entry->bytes; k++) {
            sum += data[k];
        }
        free(data);
        total += entry->bytes;
        require(td_safetensors_find(file, entry->name) == entry);
        require(td_safetensors_unknown(file, entry) != NULL ||
                (uint64_t)td_shape_numel(entry->shape) * td_dtype_size(entry->dtype) ==
                    entry->bytes);
    }
    const char *epoch = td_safetensors_metadata(file, "epoch");
    return sum + (unsigned)total + (epoch != NULL ? (unsigned)strlen(epoch) : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    td_safetensors *file;
    if (td_safetensors_parse(bytes, size, &file) == TD_OK) {
        volatile unsigned sum = use(file);
        (void)sum;
        td_safetensors_close(file);
    } else {
        require(*td_last_error() != '\0');
    }
    return 0;
}
