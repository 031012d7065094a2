/* PNGs by libpng. */
#include "data/images/bitmap.h"

#ifdef TD_HAVE_PNG

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

typedef struct reader {
    png_structp png;
    png_infop info;
    td_encoded *image;
    size_t at; /* bytes that libpng has taken */
    jmp_buf failed;
    char *why;
    uint8_t *rgb;
} reader;

static void bitmap_png_take(png_structp png, png_bytep bytes, size_t size)
{
    reader *r = png_get_io_ptr(png);
    if (size > r->image->size - r->at) {
        png_error(png, "the file is cut off");
    }
    memcpy(bytes, r->image->bytes + r->at, size);
    r->at += size;
}

_Noreturn static void on_error(png_structp png, png_const_charp message)
{
    reader *r = png_get_error_ptr(png);
    snprintf(r->why, TD_DECODER_WHY, "%s", message);
    longjmp(r->failed, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png, (void)message;
}

/* To 8 bits a channel, RGB. Returns in how many passes the rows come. */
static int set_format(reader *r)
{
    png_set_palette_to_rgb(r->png);
    png_set_expand_gray_1_2_4_to_8(r->png);
    png_set_strip_16(r->png);
    png_set_gray_to_rgb(r->png);
    png_set_strip_alpha(r->png);
    int passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    return passes;
}

/* *rows 0: only the header; of an interlaced image *rows becomes all. false: r->why says why. */
static bool bitmap_png_read_rows(reader *r, int *rows)
{
    td_encoded *p = r->image;
    if (setjmp(r->failed) != 0) {
        return false;
    }
    png_set_read_fn(r->png, r, bitmap_png_take);
    png_read_info(r->png, r->info);
    p->width = (int)png_get_image_width(r->png, r->info);
    p->height = (int)png_get_image_height(r->png, r->info);
    if (*rows == 0) {
        return true;
    }
    int passes = set_format(r);
    *rows = passes > 1 ? p->height : *rows;
    r->rgb = malloc((size_t)*rows * (size_t)p->width * 3);
    for (int pass = 0; pass < passes && r->rgb != NULL; pass++) {
        for (int y = 0; y < *rows; y++) {
            png_read_row(r->png, r->rgb + (size_t)y * (size_t)p->width * 3, NULL);
        }
    }
    if (*rows == p->height && r->rgb != NULL) {
        png_read_end(r->png, NULL);
    }
    return r->rgb != NULL;
}

td_status td_png_read(td_encoded *p, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY])
{
    reader r = { .image = p, .why = why };
    rows = bitmap != NULL ? rows : 0;
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    r.info = r.png != NULL ? png_create_info_struct(r.png) : NULL;
    bool read = r.info != NULL && bitmap_png_read_rows(&r, &rows);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    if (!read) {
        free(r.rgb);
        return why[0] != '\0' ? TD_E_FORMAT : TD_E_NOMEM;
    }
    if (bitmap != NULL) {
        *bitmap = (td_bitmap){ r.rgb, p->width, rows };
    }
    return TD_OK;
}

#else

td_status td_png_read(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY])
{
    return td_stb_read(image, rows, bitmap, why);
}

#endif
