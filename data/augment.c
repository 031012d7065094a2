/* Crops, flips and normalizes small images on their way into a batch. */
#include "data/augment.h"
#include "tensor/extend.h"

#include <string.h>

enum { SIDE = TD_PICTURE_SIDE, CHANNELS = TD_PICTURE_CHANNELS, BLOCK = TD_PICTURE_BLOCK };

void td_byte_values_set(td_byte_values *values, const td_image_transform *transform)
{
    for (int c = 0; c < CHANNELS; c++) {
        bool normalise = transform->std[c] != 0.0f;
        for (int byte = 0; byte < 256; byte++) {
            float value = (float)byte / 255.0f;
            values->of[c][byte] =
                normalise ? (value - transform->mean[c]) / transform->std[c] : value;
        }
    }
}

td_picture td_augment_draw(const td_image_transform *transform, uint64_t epoch, uint64_t sample)
{
    td_picture picture = { .down = transform->shift[0],
                           .right = transform->shift[1],
                           .flip = transform->mirror,
                           .reflect = transform->reflect };
    if (transform->crop_padding == 0 && !transform->flip) {
        return picture;
    }
    td_philox_key key = { transform->seed, 0x6175676d656e74 /* "augment" in ASCII */ };
    uint32_t word[4];
    td_philox(key, epoch, sample, word);
    uint32_t places = 2 * (uint32_t)transform->crop_padding + 1;
    picture.down += (int)(word[0] % places) - transform->crop_padding;
    picture.right += (int)(word[1] % places) - transform->crop_padding;
    bool odd = false;
    if (transform->alternate_flip && epoch > 0) {
        td_philox(key, 0, sample, word);
        odd = epoch % 2 != 0;
    }
    picture.flip ^= transform->flip && ((word[2] >> 31) != 0) != odd;
    return picture;
}

/* A row of a block of pictures after the lookup: [w][picture][channel]. A pixel is stored as four
 * floats in one go; the fourth is overwritten by the next picture's pixel, the last one's falls
 * into the room behind. */
typedef float tile[SIDE][BLOCK * CHANNELS + 4];
typedef float four_floats __attribute__((vector_size(16)));

/* A row of each channel between two margins, of zeros or of the row's reflection: a crop that
 * reaches beyond the picture reads into a margin, and the inner loop needs no conditions. */
typedef uint8_t margined_rows[CHANNELS][3 * SIDE];

/* Fills the part of the margins that a cut reaches into. */
static void fill_margins(const td_picture *picture, uint8_t *row)
{
    int right = picture->right > 0 ? picture->right : 0;
    int left = picture->right < 0 ? -picture->right : 0;
    for (int i = -left; i < 0; i++) {
        row[SIDE + i] = picture->reflect ? row[SIDE + td_reflected(i)] : 0;
    }
    for (int i = SIDE; i < SIDE + right; i++) {
        row[SIDE + i] = picture->reflect ? row[SIDE + td_reflected(i)] : 0;
    }
}

/* Row h of a picture, cut and looked up, into the tile's column i. */
static void fill_column(tile out, int i, const td_byte_values *values, const td_picture *picture,
                        int h, margined_rows rows)
{
    int from = picture->reflect ? td_reflected(h + picture->down) : h + picture->down;
    bool inside = from >= 0 && from < SIDE;
    for (int c = 0; c < CHANNELS; c++) {
        if (inside) {
            memcpy(rows[c] + SIDE, picture->pixels + (c * SIDE + from) * SIDE, SIDE);
        } else {
            memset(rows[c] + SIDE, 0, SIDE);
        }
        if (picture->right != 0) {
            fill_margins(picture, rows[c]);
        }
    }
    int step = picture->flip ? -1 : 1;
    int at = SIDE + picture->right + (picture->flip ? SIDE - 1 : 0);
    const uint8_t *r = rows[0] + at, *g = rows[1] + at, *b = rows[2] + at;
    for (int w = 0; w < SIDE; w++) {
        four_floats pixel = { values->of[0][*r], values->of[1][*g], values->of[2][*b], 0 };
        memcpy(&out[w][i * CHANNELS], &pixel, sizeof pixel);
        r += step;
        g += step;
        b += step;
    }
}

/* The tile is row h of `count` pictures: out is their element [0,0,h,0]. */
static void store_tile(tile in, int count, float *out, const int64_t *stride)
{
    bool side_by_side = stride[1] == 1 && stride[0] == CHANNELS;
    if (side_by_side && count == BLOCK) {
        for (int w = 0; w < SIDE; w++) {
            /* three whole cache lines */
            memcpy(out + w * stride[3], in[w], BLOCK * CHANNELS * sizeof *out);
        }
        return;
    }
    for (int w = 0; w < SIDE; w++) {
        for (int i = 0; i < count; i++) {
            for (int c = 0; c < CHANNELS; c++) {
                out[i * stride[0] + c * stride[1] + w * stride[3]] = in[w][i * CHANNELS + c];
            }
        }
    }
}

void td_augment_write(const td_byte_values *values, const td_picture *pictures, int count,
                      float *out, const int64_t *stride)
{
    tile row;
    margined_rows scratch = { { 0 } };
    for (int h = 0; h < SIDE; h++) {
        for (int i = 0; i < count; i++) {
            fill_column(row, i, values, &pictures[i], h, scratch);
        }
        store_tile(row, count, out + h * stride[2], stride);
    }
}
