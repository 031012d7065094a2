/* JPEGs by libjpeg(-turbo). */
#include "data/images/bitmap.h"

#ifdef TD_HAVE_JPEG

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <jerror.h>

typedef struct reader {
    struct jpeg_error_mgr errors; /* first: the library hands its address around */
    jmp_buf failed;
    struct jpeg_decompress_struct jpeg;
    char message[JMSG_LENGTH_MAX];
    uint8_t *rgb, *inks; /* inks: one row of CMYK */
} reader;

static void on_error(j_common_ptr info)
{
    reader *r = (reader *)info->err;
    info->err->format_message(info, r->message);
    longjmp(r->failed, 1);
}

/* The library warns of damage and goes on with what it makes up: grey, or pixels of elsewhere.
 * Other warnings are of markers that only look odd; many cameras write such files. */
static void on_message(j_common_ptr info, int level)
{
    static const int damage[] = { JWRN_JPEG_EOF,       JWRN_HIT_MARKER,  JWRN_HUFF_BAD_CODE,
                                  JWRN_ARITH_BAD_CODE, JWRN_MUST_RESYNC, JWRN_BOGUS_PROGRESSION };
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        if (level < 0 && info->err->msg_code == damage[i]) {
            on_error(info);
        }
    }
}

/* Inks to light, in place from 4 to 3 bytes a pixel: light = (1 - ink) (1 - black). Adobe's files
 * hold 255 - ink. */
static void convert_cmyk(const uint8_t *row, int width, bool inverted, uint8_t *rgb)
{
    for (int x = 0; x < width; x++) {
        int black = inverted ? row[4 * x + 3] : 255 - row[4 * x + 3];
        for (int c = 0; c < 3; c++) {
            int light = inverted ? row[4 * x + c] : 255 - row[4 * x + c];
            int product = light * black + 128;
            rgb[3 * x + c] = (uint8_t)((product + (product >> 8)) >> 8);
        }
    }
}

/* rows 0: only the header. false: r->message says why. */
static bool bitmap_jpeg_read_rows(reader *r, td_encoded *p, int rows)
{
    struct jpeg_decompress_struct *jpeg = &r->jpeg;
    if (setjmp(r->failed) != 0) {
        return false;
    }
    jpeg_create_decompress(jpeg);
    jpeg_mem_src(jpeg, p->bytes, (unsigned long)p->size);
    jpeg_read_header(jpeg, TRUE);
    p->width = (int)jpeg->image_width;
    p->height = (int)jpeg->image_height;
    if (rows == 0) {
        return true;
    }
    bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
    jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(jpeg);
    while ((int)jpeg->output_scanline < rows) {
        uint8_t *rgb = r->rgb + (size_t)jpeg->output_scanline * jpeg->output_width * 3;
        JSAMPROW row = cmyk ? r->inks : rgb;
        if (jpeg_read_scanlines(jpeg, &row, 1) == 1 && cmyk) {
            convert_cmyk(r->inks, p->width, jpeg->saw_Adobe_marker, rgb);
        }
    }
    if (rows == p->height) {
        jpeg_finish_decompress(jpeg); /* looks for the end marker */
    }
    return true;
}

td_status td_jpeg_read(td_encoded *p, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY])
{
    reader r = { .message = "" };
    r.jpeg.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = on_error;
    r.errors.emit_message = on_message;
    if (bitmap != NULL) {
        r.rgb = malloc((size_t)rows * (size_t)p->width * 3);
        r.inks = malloc((size_t)p->width * 4);
    }
    bool memory = bitmap == NULL || (r.rgb != NULL && r.inks != NULL);
    bool read = memory && bitmap_jpeg_read_rows(&r, p, bitmap != NULL ? rows : 0);
    jpeg_destroy_decompress(&r.jpeg);
    free(r.inks);
    if (!read) {
        free(r.rgb);
        snprintf(why, TD_DECODER_WHY, "%s", r.message);
        return memory ? TD_E_FORMAT : TD_E_NOMEM;
    }
    if (bitmap != NULL) {
        *bitmap = (td_bitmap){ r.rgb, p->width, rows };
    }
    return TD_OK;
}

#else

td_status td_jpeg_read(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY])
{
    return td_stb_read(image, rows, bitmap, why);
}

#endif
