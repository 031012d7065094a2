/* What kind of picture a file holds, and whether all of it is there; decoding by stb_image, JPEGs
 * by libjpeg(-turbo) where there is one. stb_image takes bytes beyond a file's end for zeros, so a
 * file that was cut off is found here. */
#include "data/images/bitmap.h"
#include "data/inspect.h"

#include <stdlib.h>
#include <string.h>

/* ---- JPEG: markers ---- */

bool td_is_jpeg(const td_encoded *p)
{
    return p->size >= 3 && memcmp(p->bytes, "\xff\xd8\xff", 3) == 0;
}

/* The marker after entropy-coded data that begin at `at`; the size if there is none. */
static size_t next_marker(const td_encoded *p, size_t at)
{
    while (at + 1 < p->size) {
        const uint8_t *found = memchr(p->bytes + at, 0xff, p->size - at - 1);
        if (found == NULL) {
            return p->size;
        }
        uint8_t code = found[1];
        at = (size_t)(found - p->bytes);
        bool inside = code == 0x00 || (code >= 0xd0 && code <= 0xd7); /* stuffing, restarts */
        if (!inside && code != 0xff) {
            return at;
        }
        at += code == 0xff ? 1 : 2;
    }
    return p->size;
}

bool td_jpeg_is_whole(const td_encoded *p)
{
    enum { END = 0xd9, SCAN = 0xda };
    for (size_t at = next_marker(p, 2); at + 1 < p->size;) {
        uint8_t code = p->bytes[at + 1];
        if (code == END) {
            return true;
        }
        if (at + 3 >= p->size) {
            return false;
        }
        at += 2 + ((size_t)p->bytes[at + 2] << 8 | p->bytes[at + 3]);
        if (code == SCAN || at + 1 >= p->size || p->bytes[at] != 0xff) {
            at = next_marker(p, at);
        }
    }
    return false;
}

/* Whether the Huffman tables of one segment, of `size` bytes, have 256 codes at most. */
static bool tables_fit(const uint8_t *tables, size_t size)
{
    enum { LENGTHS = 16, MOST_CODES = 256 };
    while (size >= 1 + LENGTHS) {
        size_t codes = 0;
        for (int i = 1; i <= LENGTHS; i++) {
            codes += tables[i];
        }
        if (codes > MOST_CODES || 1 + LENGTHS + codes > size) {
            return false;
        }
        tables += 1 + LENGTHS + codes;
        size -= 1 + LENGTHS + codes;
    }
    return size == 0;
}

bool td_jpeg_tables_fit(const td_encoded *p)
{
    enum { TABLES = 0xc4, END = 0xd9, SCAN = 0xda };
    for (size_t at = next_marker(p, 2); at + 3 < p->size;) {
        uint8_t code = p->bytes[at + 1];
        size_t length = (size_t)p->bytes[at + 2] << 8 | p->bytes[at + 3];
        if (code == END) {
            return true;
        }
        if (length < 2 || at + 2 + length > p->size ||
            (code == TABLES && !tables_fit(p->bytes + at + 4, length - 2))) {
            return false;
        }
        at += 2 + length;
        if (code == SCAN || at + 1 >= p->size || p->bytes[at] != 0xff) {
            at = next_marker(p, at);
        }
    }
    return true;
}

/* ---- GIF and BMP: whether they are whole ---- */

static size_t skip_blocks(const td_encoded *p, size_t at)
{
    while (at < p->size && p->bytes[at] != 0) {
        at += 1 + (size_t)p->bytes[at];
    }
    return at + 1;
}

static size_t colours_of(uint8_t flags)
{
    return (flags & 0x80) != 0 ? (size_t)3 << ((flags & 7) + 1) : 0;
}

/* Up to the end of the first picture. */
static bool gif_is_whole(const td_encoded *p)
{
    enum { HEADER = 13, PICTURE = 10 };
    if (p->size < HEADER) {
        return false;
    }
    size_t at = HEADER + colours_of(p->bytes[10]);
    while (at + PICTURE < p->size) {
        if (p->bytes[at] == 0x21) { /* an extension */
            at = skip_blocks(p, at + 2);
        } else if (p->bytes[at] == 0x2c) {
            return skip_blocks(p, at + PICTURE + colours_of(p->bytes[at + PICTURE - 1]) + 1) <=
                   p->size;
        } else {
            return false;
        }
    }
    return false;
}

static uint32_t little_endian(const uint8_t *bytes, int count)
{
    uint32_t value = 0;
    for (int i = count - 1; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static bool bmp_is_whole(const td_encoded *p)
{
    enum { OFFSET = 10, HEADER_SIZE = 14, BITS_OLD = 24, BITS = 28, LEAST = 30 };
    if (p->size < LEAST) {
        return false;
    }
    bool old = little_endian(p->bytes + HEADER_SIZE, 4) == 12;
    uint64_t bits = little_endian(p->bytes + (old ? BITS_OLD : BITS), 2);
    uint64_t row = ((uint64_t)p->width * bits + 31) / 32 * 4;
    return little_endian(p->bytes + OFFSET, 4) + row * (uint64_t)p->height <= p->size;
}

/* Whether every chunk of a PNG lies in the file, up to the last: stb_image takes as much memory as
 * a chunk says that it is long. */
static bool png_is_whole(const td_encoded *p)
{
    enum { SIGNATURE = 8, FRAME = 12 }; /* length, name and checksum of a chunk */
    for (size_t at = SIGNATURE; at + FRAME <= p->size;) {
        const uint8_t *chunk = p->bytes + at;
        size_t length =
            (size_t)chunk[0] << 24 | (size_t)chunk[1] << 16 | (size_t)chunk[2] << 8 | chunk[3];
        if (length > p->size - at - FRAME) {
            return false;
        }
        if (memcmp(chunk + 4, "IEND", 4) == 0) {
            return true;
        }
        at += FRAME + length;
    }
    return false;
}

/* ---- all kinds ---- */

static bool begins_with(const td_encoded *p, const char *magic, size_t size)
{
    return p->size >= size && memcmp(p->bytes, magic, size) == 0;
}

static const char *kind_of(const td_encoded *p)
{
    return td_is_jpeg(p)                            ? "JPEG"
           : begins_with(p, "\x89PNG\r\n\x1a\n", 8) ? "PNG"
           : begins_with(p, "GIF8", 4)              ? "GIF"
           : begins_with(p, "BM", 2)                ? "BMP"
                                                    : NULL;
}

static td_status not_readable(const td_encoded *p, const char *why)
{
    return td_fail(TD_E_FORMAT, "%s: this %s cannot be read: %s. Replace or remove it", p->name,
                   kind_of(p), why);
}

static bool is_whole(const td_encoded *p)
{
    return td_is_jpeg(p)               ? td_jpeg_is_whole(p)
           : begins_with(p, "GIF8", 4) ? gif_is_whole(p)
           : begins_with(p, "BM", 2)   ? bmp_is_whole(p)
                                       : png_is_whole(p);
}

static td_status decode(const td_encoded *p, td_bitmap *bitmap)
{
    const char *why;
    TD_TRY(td_stb_decode(p, bitmap, &why));
    if (bitmap->rgb == NULL) {
        return not_readable(p, why);
    }
    if (bitmap->width != p->width || bitmap->height != p->height) {
        free(bitmap->rgb);
        return not_readable(p, "its sizes contradict each other");
    }
    return TD_OK;
}

const char *td_jpeg_decoder(void)
{
#ifdef TD_HAVE_JPEG
    const char *wanted = getenv("TANDEM_JPEG");
    if (wanted == NULL || strcmp(wanted, "stb_image") != 0) {
        return "libjpeg";
    }
#endif
    return "stb_image";
}

#ifdef TD_HAVE_JPEG
static bool is_for_libjpeg(const td_encoded *p)
{
    return td_is_jpeg(p) && strcmp(td_jpeg_decoder(), "libjpeg") == 0;
}
#endif

static td_status open_kind(td_encoded *p)
{
#ifdef TD_HAVE_JPEG
    if (is_for_libjpeg(p)) {
        return td_jpeg_open(p);
    }
#endif
    const char *why;
    TD_TRY(td_stb_size(p, &why));
    return why == NULL ? TD_OK : not_readable(p, why);
}

td_status td_bitmap_open(td_encoded *p)
{
    if (p->size == 0) {
        return td_fail(TD_E_FORMAT, "%s: the file is empty. Replace or remove it", p->name);
    }
    if (kind_of(p) == NULL) {
        return td_fail(TD_E_FORMAT,
                       "%s: neither JPEG, PNG, BMP nor GIF by its content. Replace or remove it",
                       p->name);
    }
    TD_TRY(open_kind(p));
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

td_status td_bitmap_decode(const td_encoded *p, int rows, td_bitmap *bitmap)
{
    *bitmap = (td_bitmap){ .rgb = NULL };
    if (!is_whole(p)) {
        return not_readable(p, "the file is cut off");
    }
#ifdef TD_HAVE_JPEG
    if (is_for_libjpeg(p)) {
        return td_jpeg_decode(p, rows, bitmap);
    }
#endif
    (void)rows;
    return decode(p, bitmap);
}
