/* The data of a tensor in a safetensors file. */
#pragma once

#include "nn/io/safetensors.h"

#include <stdlib.h>

/* Row-major; freed by the caller. Ends the test if the data cannot be read. */
static inline void *entry_data(const td_safetensors *file, const td_safetensors_entry *entry)
{
    void *data = malloc(entry->bytes + 1);
    if (data == NULL || td_safetensors_read(file, entry, data) != TD_OK) {
        td_die();
    }
    return data;
}
