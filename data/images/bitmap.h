/* Images out of files: decoding into bytes. Users do not include this. */
#pragma once

#include "data/data.h"

typedef struct td_bitmap {
    uint8_t *rgb; /* [height][width][3]; from malloc, its holder's to free */
    int width, height;
} td_bitmap;

/* An image file in memory, not yet decoded. */
typedef struct td_encoded {
    const uint8_t *bytes;
    size_t size;
    const char *name;    /* of the file, for messages */
    int64_t most_pixels; /* more are refused before anything is decoded */
    bool intact;       /* all of this file was decoded before: no damage is in the rows that are not
                          needed */
    int width, height; /* set by td_bitmap_open */
} td_encoded;

/* Finds out the kind by the content (JPEG, PNG, BMP, GIF, TGA, PSD, PGM, PPM, HDR) and reads the
 * size. TD_E_FORMAT with the name: the file is none of these, has no pixels, or too many.
 * TD_E_UNSUPPORTED: this build lacks the library. */
td_status td_bitmap_open(td_encoded *image);

/* Decodes the first `rows` rows (0: all; of an interlaced image, of what stb_image decodes and of
 * an image that is not known to be intact always all, and bitmap->height says so) to RGB: grey
 * becomes three equal channels, transparency is dropped, CMYK is converted, and light of any range
 * (HDR) is brought to bytes by a gamma of 2.2. Of a GIF the first frame counts. TD_E_FORMAT:
 * damaged or cut off. */
td_status td_bitmap_decode(const td_encoded *image, int rows, td_bitmap *bitmap);

/* ---- the decoders (bitmap_jpeg.c, bitmap_png.c, bitmap_stb.c) ---- */

/* bitmap NULL: only sets the size. `why` says what is wrong with the file. Where libjpeg or libpng
 * is missing, the first two hand over to the third. */
enum { TD_DECODER_WHY = 256 };
td_status td_jpeg_read(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY]);
td_status td_png_read(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY]);
td_status td_stb_read(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY]);
