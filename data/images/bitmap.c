/* Which kind of image a file holds, and whether it may be decoded. libjpeg, libpng and stb_image
 * decode. */
#include "data/images/bitmap.h"
#include "tensor/system/files.h"

#include <string.h>

typedef struct decoder {
    const char *kind, *magic;
    td_status (*read)(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY]);
} decoder;

static const decoder decoders[] = {
    { "JPEG", "\xff\xd8\xff", td_jpeg_read },
    { "PNG", "\x89PNG\r\n\x1a\n", td_png_read },
    { "BMP", "BM", td_stb_read },
    { "GIF", "GIF8", td_stb_read },
    { "PSD", "8BPS", td_stb_read },
    { "PGM", "P5", td_stb_read },
    { "PPM", "P6", td_stb_read },
    { "HDR", "#?RADIANCE", td_stb_read },
    { "HDR", "#?RGBE", td_stb_read },
    { "TGA", NULL, td_stb_read }, /* is_tga */
};

/* A TGA begins with its header: a palette or none, what the pixels are, and their bits. */
static bool is_tga(const td_encoded *p)
{
    enum { HEADER = 18, PALETTE = 1, KIND = 2, BITS = 16 };
    static const char kinds[] = { 1, 2, 3, 9, 10, 11 }, bits[] = { 8, 15, 16, 24, 32 };
    return p->size > HEADER && p->bytes[PALETTE] <= 1 &&
           memchr(kinds, p->bytes[KIND], sizeof kinds) != NULL &&
           memchr(bits, p->bytes[BITS], sizeof bits) != NULL;
}

/* NULL: the file is of no known kind. */
static const decoder *decoder_of(const td_encoded *p)
{
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++) {
        const char *magic = decoders[i].magic;
        size_t size = magic != NULL ? strlen(magic) : 0;
        if (magic == NULL ? is_tga(p) : p->size >= size && memcmp(p->bytes, magic, size) == 0) {
            return &decoders[i];
        }
    }
    return NULL;
}

static td_status not_readable(const td_encoded *p, const char *why)
{
    return td_fail(TD_E_FORMAT, "%s: this %s cannot be read: %s. Replace or remove it", p->name,
                   decoder_of(p)->kind, why);
}

static td_status read_image(td_encoded *p, int rows, td_bitmap *bitmap)
{
    char why[TD_DECODER_WHY] = "";
    td_status status = decoder_of(p)->read(p, rows, bitmap, why);
    switch (status) {
    case TD_E_FORMAT:
        return not_readable(p, why);
    case TD_E_UNSUPPORTED:
        return td_fail(
            status, "%s: this build decodes no %s; install its library (make deps) and build again",
            p->name, decoder_of(p)->kind);
    case TD_E_NOMEM:
        return td_fail(status, "%s: no memory for %d x %d pixels", p->name, p->width, p->height);
    default:
        return status;
    }
}

td_status td_bitmap_open(td_encoded *p)
{
    TD_CHECK(p->size != 0, TD_E_FORMAT, "%s: the file is empty. Replace or remove it", p->name);
    if (decoder_of(p) == NULL) {
        const char *kind = td_file_kind(p->bytes, p->size);
        return td_fail(TD_E_FORMAT,
                       "%s: by its content %s%snone of the images that are read (JPEG, PNG, BMP, "
                       "GIF, TGA, PSD, PGM, PPM, HDR). Convert, replace or remove it",
                       p->name, kind != NULL ? kind : "", kind != NULL ? ", " : "");
    }
    TD_TRY(read_image(p, 0, NULL));
    if (p->width < 1 || p->height < 1) {
        return not_readable(p, "it has no pixels");
    }
    TD_CHECK(
        (int64_t)p->width * p->height <= p->most_pixels, TD_E_FORMAT,
        "%s: %d x %d pixels are more than the %lld that are taken for an image; make it smaller",
        p->name, p->width, p->height, (long long)p->most_pixels);
    return TD_OK;
}

td_status td_bitmap_decode(const td_encoded *image, int rows, td_bitmap *bitmap)
{
    td_encoded p = *image;
    *bitmap = (td_bitmap){ .rgb = NULL };
    return read_image(&p, p.intact && rows > 0 && rows < p.height ? rows : p.height, bitmap);
}
