/* Pictures out of files: decoding into bytes. Users do not include this. */
#ifndef TD_DATA_IMAGES_BITMAP_H
#define TD_DATA_IMAGES_BITMAP_H

#include "data/data.h"

typedef struct td_bitmap {
    uint8_t *rgb; /* [height][width][3]; from malloc, its holder's to free */
    int width, height;
} td_bitmap;

/* A picture file in memory, not yet decoded. */
typedef struct td_encoded {
    const uint8_t *bytes;
    size_t size;
    const char *name;    /* of the file, for messages */
    int64_t most_pixels; /* more are refused before anything is decoded */
    int width, height;   /* set by td_bitmap_open */
} td_encoded;

/* Finds out the kind by the content (JPEG, PNG, BMP, GIF) and reads the size. TD_E_FORMAT with the
 * name: it is none of them, has no pixels, or too many. */
td_status td_bitmap_open(td_encoded *picture);

/* Decodes the first `rows` rows (0: all; decoders that cannot stop decode all, and bitmap->height
 * says so) to RGB: grey becomes three equal channels, transparency is dropped, of an animation the
 * first picture is taken, CMYK is converted. TD_E_FORMAT: damaged or cut off. */
td_status td_bitmap_decode(const td_encoded *picture, int rows, td_bitmap *bitmap);

/* ---- between the files that decode ---- */

bool td_is_jpeg(const td_encoded *picture);
/* Whether a JPEG goes on to its end marker: false for a file that was cut off. */
bool td_jpeg_is_whole(const td_encoded *picture);

/* Whether its Huffman tables have as many codes as there can be: stb_image does not look, and would
 * write behind its own. */
bool td_jpeg_tables_fit(const td_encoded *picture);

/* By stb_image. *why is set to what it says against the picture, NULL: nothing. The status is not
 * TD_OK if there is no stb_image in this build. Only the header is read; all is decoded. */
td_status td_stb_size(td_encoded *picture, const char **why);
td_status td_stb_decode(const td_encoded *picture, td_bitmap *bitmap, const char **why);

#ifdef TD_HAVE_JPEG
td_status td_jpeg_open(td_encoded *picture);
td_status td_jpeg_decode(const td_encoded *picture, int rows, td_bitmap *bitmap);
#endif

#endif
