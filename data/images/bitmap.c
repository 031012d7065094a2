/* Which kind of image a file holds, and whether it may be decoded. libjpeg and libpng decode. */
#include "data/images/bitmap.h"

#include <string.h>

typedef struct decoder {
    const char *kind, *magic;
    td_status (*read)(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY]);
} decoder;

static const decoder decoders[] = {
    { "JPEG", "\xff\xd8\xff", td_jpeg_read },
    { "PNG", "\x89PNG\r\n\x1a\n", td_png_read },
};

/* NULL: the file is of no known kind. */
static const decoder *decoder_of(const td_encoded *p)
{
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++) {
        size_t size = strlen(decoders[i].magic);
        if (p->size >= size && memcmp(p->bytes, decoders[i].magic, size) == 0) {
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
        return td_fail(status,
                       "%s: this build decodes no %s; install its library (make deps) and build "
                       "again",
                       p->name, decoder_of(p)->kind);
    case TD_E_NOMEM:
        return td_fail(status, "%s: no memory for %d x %d pixels", p->name, p->width, p->height);
    default:
        return status;
    }
}

td_status td_bitmap_open(td_encoded *p)
{
    if (p->size == 0) {
        return td_fail(TD_E_FORMAT, "%s: the file is empty. Replace or remove it", p->name);
    }
    if (decoder_of(p) == NULL) {
        return td_fail(TD_E_FORMAT,
                       "%s: neither JPEG nor PNG by its content. Convert, replace or remove it",
                       p->name);
    }
    TD_TRY(read_image(p, 0, NULL));
    if (p->width < 1 || p->height < 1) {
        return not_readable(p, "it has no pixels");
    }
    if ((int64_t)p->width * p->height > p->most_pixels) {
        return td_fail(
            TD_E_FORMAT,
            "%s: %d x %d pixels are more than the %lld that are taken for an image; make "
            "it smaller",
            p->name, p->width, p->height, (long long)p->most_pixels);
    }
    return TD_OK;
}

td_status td_bitmap_decode(const td_encoded *image, int rows, td_bitmap *bitmap)
{
    td_encoded p = *image;
    *bitmap = (td_bitmap){ .rgb = NULL };
    return read_image(&p, p.intact && rows > 0 && rows < p.height ? rows : p.height, bitmap);
}
