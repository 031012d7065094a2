/* BMP, GIF, TGA, PSD, PGM, PPM and HDR, and JPEG and PNG where their own libraries are missing: by
 * stb_image, a header that is compiled in here. */
#include "data/images/bitmap.h"

#ifdef TD_HAVE_STB

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A damaged PNG's data may unpack to any size; no image of most_pixels needs this much. Tables that
 * a damaged JPEG never sets are zero. */
enum { MOST_MEMORY = 1 << 30 };

static void *stb_malloc(size_t size)
{
    return size <= MOST_MEMORY ? calloc(1, size) : NULL;
}

static void *stb_realloc(void *old, size_t size)
{
    return size <= MOST_MEMORY ? realloc(old, size) : NULL;
}

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_PIC
#define STBI_FAILURE_USERMSG
#define STBI_MALLOC stb_malloc
#define STBI_REALLOC stb_realloc
#define STBI_FREE free
/* Damaged files break its assertions, and no file may end the program. */
#define STBI_ASSERT(condition) ((void)(condition))
/* Its arithmetic on bytes of a file overflows and shifts as it likes (-fwrapv); its memory is
 * checked. */
#ifdef __clang__
#pragma clang attribute push(__attribute__((no_sanitize("undefined"))), apply_to = function)
#endif
#pragma GCC diagnostic ignored                                                                     \
    "-Wunused-function" /* it declares a function that it does not have */
#include <stb_image.h>
#ifdef __clang__
#pragma clang attribute pop
#endif

/* The file, and behind it zeros without end, which stb_image takes for the end of a file, too. Most
 * of its readers do not notice one, so what was read is counted. */
typedef struct stb_source {
    const td_encoded *image;
    size_t at;
} stb_source;

static int stb_take(void *user, char *data, int size)
{
    stb_source *source = user;
    size_t wanted = (size_t)size, whole = source->image->size;
    size_t left = source->at < whole ? whole - source->at : 0, n = wanted < left ? wanted : left;
    if (n > 0) {
        memcpy(data, source->image->bytes + source->at, n);
    }
    memset(data + n, 0, wanted - n);
    source->at += wanted;
    return size;
}

static void stb_skip(void *user, int size)
{
    ((stb_source *)user)->at += (size_t)size;
}

static int stb_ended(void *user)
{
    stb_source *source = user;
    return source->at >= source->image->size;
}

/* Versions before 2.28 (Debian 12) write a JPEG's table of more than 256 symbols past its end, and
 * take symbol 255 for none. No camera's table has more than 226. So wherever a table may begin in
 * the file, it must have fewer. */
static bool stb_tables_fit(const td_encoded *p)
{
    enum { MARKER = 4, LENGTHS = 16, HEAD = 1 + LENGTHS, MOST_SYMBOLS = 255 };
    static const uint8_t begin[] = { 0xff, 0xc4 };
    const uint8_t *at = p->bytes, *end = p->bytes + p->size;
    while ((at = memmem(at, (size_t)(end - at), begin, sizeof begin)) != NULL) {
        const uint8_t *table = at + MARKER;
        int left = end - at > MARKER ? at[2] * 256 + at[3] - 2 : 0;
        while (left > 0 && end - table >= HEAD) {
            int symbols = 0;
            for (int i = 1; i <= LENGTHS; i++) {
                symbols += table[i];
            }
            if (symbols > MOST_SYMBOLS) {
                return false;
            }
            left -= HEAD + symbols;
            table += end - table > HEAD + symbols ? HEAD + symbols : end - table;
        }
        at += sizeof begin;
    }
    return true;
}

td_status td_stb_read(td_encoded *p, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY])
{
    (void)rows; /* always all */
    if (p->size > 2 && p->bytes[0] == 0xff && !stb_tables_fit(p)) {
        snprintf(why, TD_DECODER_WHY, "a table has too many symbols");
        return TD_E_FORMAT;
    }
    stb_source source = { p, 0 }, look = { p, 0 };
    stbi_io_callbacks calls = { stb_take, stb_skip, stb_ended };
    /* Versions before 2.28 take the memory of such an image for twice as long as it is. */
    if (p->size > 2 && p->bytes[0] == 'P' && stbi_is_16_bit_from_callbacks(&calls, &look) != 0) {
        snprintf(why, TD_DECODER_WHY, "16 bits a channel; save it with 8");
        return TD_E_FORMAT;
    }
    if (bitmap == NULL) {
        if (stbi_info_from_callbacks(&calls, &source, &p->width, &p->height, NULL) == 0) {
            snprintf(why, TD_DECODER_WHY, "%s", stbi_failure_reason());
            return TD_E_FORMAT;
        }
        return TD_OK;
    }
    enum { RGB = 3 };
    stbi__context reader;
    int width = 0, height = 0, channels = 0;
    stbi__start_callbacks(&reader, &calls, &source);
    uint8_t *rgb = stbi__load_and_postprocess_8bit(&reader, &width, &height, &channels, RGB);
    bool cut = source.at - (size_t)(reader.img_buffer_end - reader.img_buffer) > p->size;
    if (rgb != NULL && !cut && width == p->width && height == p->height) {
        *bitmap = (td_bitmap){ rgb, width, height };
        return TD_OK;
    }
    free(rgb);
    const char *reason = cut           ? "the file is cut off"
                         : rgb == NULL ? stbi_failure_reason()
                                       : "it has two sizes";
    snprintf(why, TD_DECODER_WHY, "%s", reason);
    return strcmp(reason, "Out of memory") == 0 ? TD_E_NOMEM : TD_E_FORMAT;
}

#else

td_status td_stb_read(td_encoded *image, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY])
{
    (void)image, (void)rows, (void)bitmap, (void)why;
    return TD_E_UNSUPPORTED;
}

#endif
