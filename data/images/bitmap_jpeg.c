/* JPEGs by libjpeg (libjpeg-turbo is several times quicker than stb_image). */
#ifdef TD_HAVE_JPEG

#include "data/images/bitmap.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

typedef struct reader {
    struct jpeg_error_mgr errors; /* first: the library hands its address around */
    jmp_buf failed;
    char message[JMSG_LENGTH_MAX];
} reader;

static void on_error(j_common_ptr info)
{
    reader *r = (reader *)info->err;
    info->err->format_message(info, r->message);
    longjmp(r->failed, 1);
}

/* Warnings: damaged parts are shown as well as they can be, as all decoders do. */
static void on_message(j_common_ptr info, int level)
{
    (void)info, (void)level;
}

static void start(struct jpeg_decompress_struct *jpeg, const td_encoded *p)
{
    jpeg_create_decompress(jpeg);
    jpeg_mem_src(jpeg, p->bytes, (unsigned long)p->size);
    jpeg_read_header(jpeg, TRUE);
}

static td_status refuse(const td_encoded *p, const char *why)
{
    return td_fail(TD_E_FORMAT, "%s: this JPEG cannot be read: %s. Replace or remove it", p->name,
                   why);
}

static void set_errors(struct jpeg_decompress_struct *jpeg, reader *r)
{
    jpeg->err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
}

td_status td_jpeg_open(td_encoded *p)
{
    struct jpeg_decompress_struct jpeg = { 0 };
    reader r;
    set_errors(&jpeg, &r);
    if (setjmp(r.failed) != 0) {
        jpeg_destroy_decompress(&jpeg);
        return refuse(p, r.message);
    }
    start(&jpeg, p);
    p->width = (int)jpeg.image_width;
    p->height = (int)jpeg.image_height;
    jpeg_destroy_decompress(&jpeg);
    return TD_OK;
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

typedef struct output {
    uint8_t *rgb;
    uint8_t *inks; /* one row of CMYK; NULL: the picture is none */
    int rows;
} output;

static void read_rows(struct jpeg_decompress_struct *jpeg, const output *out)
{
    while ((int)jpeg->output_scanline < out->rows) {
        uint8_t *rgb = out->rgb + (size_t)jpeg->output_scanline * jpeg->output_width * 3;
        JSAMPROW row = out->inks != NULL ? out->inks : rgb;
        if (jpeg_read_scanlines(jpeg, &row, 1) == 1 && out->inks != NULL) {
            convert_cmyk(out->inks, (int)jpeg->output_width, jpeg->saw_Adobe_marker, rgb);
        }
    }
}

td_status td_jpeg_decode(const td_encoded *p, int rows, td_bitmap *bitmap)
{
    output out = { .rows = rows > 0 && rows < p->height ? rows : p->height };
    out.rgb = malloc((size_t)out.rows * (size_t)p->width * 3);
    out.inks = malloc((size_t)p->width * 4);
    if (out.rgb == NULL || out.inks == NULL) {
        free(out.rgb);
        free(out.inks);
        return td_fail(TD_E_NOMEM, "%s: no memory for %d x %d pixels", p->name, p->width,
                       p->height);
    }
    uint8_t *const inks = out.inks;
    struct jpeg_decompress_struct jpeg = { 0 };
    reader r;
    set_errors(&jpeg, &r);
    if (setjmp(r.failed) != 0) {
        jpeg_destroy_decompress(&jpeg);
        free(inks);
        free(out.rgb);
        return refuse(p, r.message);
    }
    start(&jpeg, p);
    bool cmyk = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
    jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    out.inks = cmyk ? inks : NULL;
    jpeg_start_decompress(&jpeg);
    read_rows(&jpeg, &out);
    jpeg_destroy_decompress(&jpeg);
    free(inks);
    *bitmap = (td_bitmap){ out.rgb, p->width, out.rows };
    return TD_OK;
}

#else

typedef int td_bitmap_jpeg_needs_libjpeg; /* C wants a file to declare something */

#endif
