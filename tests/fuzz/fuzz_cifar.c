/* Fuzzing CIFAR's parser. The first byte chooses the kind, the rest is the file: it is refused for
 * its size or a label, or every label is in range and every pixel is the file's. */
#include "data/parse.h"

#include <stdlib.h>
#include <string.h>

enum { PICTURE = 3072, MOST_RECORDS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const uint8_t *bytes, int64_t records, td_cifar_kind kind, const uint8_t *pixels,
                  const uint8_t *labels)
{
    for (int64_t r = 0; r < records; r++) {
        const uint8_t *end = bytes + (r + 1) * td_cifar_record_bytes(kind);
        if (labels[r] >= (int)kind || memcmp(pixels + r * PICTURE, end - PICTURE, PICTURE) != 0) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) {
        return 0;
    }
    td_cifar_kind kind = bytes[0] % 2 == 0 ? TD_CIFAR10 : TD_CIFAR100;
    bytes++;
    size--;
    int64_t records;
    if (td_cifar_check_size((int64_t)size, kind, MOST_RECORDS, "fuzz.bin", &records) != TD_OK) {
        return 0;
    }
    /* Exactly as much as is promised, so that a byte too many is seen. */
    uint8_t *pixels = malloc((size_t)records * PICTURE), *labels = malloc((size_t)records);
    if (pixels == NULL || labels == NULL) {
        abort();
    }
    if (td_cifar_parse(bytes, records, kind, "fuzz.bin", pixels, labels) == TD_OK) {
        check(bytes, records, kind, pixels, labels);
    }
    free(pixels);
    free(labels);
    return 0;
}
