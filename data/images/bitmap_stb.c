/* BMP, GIF, TGA, PSD, PGM, PPM and HDR, and JPEG and PNG where their own libraries are missing: by
 * stb_image, a header that is compiled in here. */
#include "data/images/bitmap.h"

#ifdef TD_HAVE_STB

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A damaged PNG's data may unpack to any size; no image of most_pixels needs this much. */
enum { MOST_MEMORY = 1 << 30 };

static void *stb_malloc(size_t size)
{
    return size <= MOST_MEMORY ? malloc(size) : NULL;
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
/* Damaged files break its assertions, and no file may end the program. The fuzzer looks for what follows. */
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

td_status td_stb_read(td_encoded *p, int rows, td_bitmap *bitmap, char why[TD_DECODER_WHY])
{
    (void)rows; /* always all */
    stb_source source = { p, 0 };
    stbi_io_callbacks calls = { stb_take, stb_skip, stb_ended };
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
