/* Fuzzing the picture path: any bytes are refused with a message, or decode to as many pixels as
 * they promised, all of which are written; and decoding a part of the rows is no different. First
 * on the path of this build, where JPEGs go to libjpeg if that is there; then by stb_image alone.
 */
#include "data/images/bitmap.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PIXELS = 1 << 18 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Reads every byte, so that a sanitizer sees those that are missing. */
static unsigned sum_of(const td_bitmap *bitmap)
{
    unsigned sum = 0;
    for (size_t i = 0; i < (size_t)bitmap->width * (size_t)bitmap->height * 3; i++) {
        sum += bitmap->rgb[i];
    }
    return sum;
}

static volatile unsigned sum; /* read by nobody, but not to be optimised away */

static void read_by_stb(td_encoded picture)
{
    char why[TD_DECODER_WHY];
    td_bitmap bitmap;
    if (td_stb_read(&picture, 0, NULL, why) == TD_OK && picture.width >= 1 && picture.height >= 1 &&
        (int64_t)picture.width * picture.height <= MOST_PIXELS &&
        td_stb_read(&picture, picture.height, &bitmap, why) == TD_OK) {
        sum = sum_of(&bitmap);
        free(bitmap.rgb);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    td_encoded picture = {
        .bytes = bytes, .size = size, .name = "fuzz", .most_pixels = MOST_PIXELS
    };
    read_by_stb(picture);
    if (td_bitmap_open(&picture) != TD_OK) {
        return 0;
    }
    if (picture.width < 1 || picture.height < 1 ||
        (int64_t)picture.width * picture.height > MOST_PIXELS) {
        abort();
    }
    td_bitmap bitmap;
    picture.intact = true;
    for (int rows = 0; rows < 2; rows++) {
        if (td_bitmap_decode(&picture, rows, &bitmap) == TD_OK) {
            sum = sum_of(&bitmap);
            free(bitmap.rgb);
        }
    }
    return 0;
}
