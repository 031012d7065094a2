/* stb_image, and nothing else, in a file of its own: its warnings are not ours. */
#include "data/images/bitmap.h"

#ifdef TD_HAVE_STB

#include <stdlib.h>

/* What stb_image may take at a time. A PNG's data can be a thousand times longer when they are
 * unpacked, whatever its header says: stb_image would go on doubling its memory until it is all
 * there, and find out then that the picture is small. */
static _Thread_local struct {
    size_t most;
    bool refused;
} memory;

static bool allowed(size_t size)
{
    memory.refused = memory.refused || size > memory.most;
    return size <= memory.most;
}

static void *limited_malloc(size_t size)
{
    return allowed(size) ? malloc(size) : NULL;
}

static void *limited_realloc(void *old, size_t size)
{
    return allowed(size) ? realloc(old, size) : NULL;
}

/* More than any honest picture of these sizes needs in one piece: 16 bytes a pixel (four channels
 * of 16 bits, and as much again since it grows by doubling), margins for blocks of JPEGs, the file
 * twice, and tables. */
static void set_limit(const td_encoded *p, bool header_alone)
{
    size_t pixels = header_alone ? 0 : ((size_t)p->width + 64) * ((size_t)p->height + 64);
    memory.most = 16 * pixels + 2 * p->size + (1 << 20);
    memory.refused = false;
}

static const char *reason(const char *theirs)
{
    return memory.refused ? "its data are many times larger than its pixels" : theirs;
}

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif
#ifndef __clang_analyzer__ /* which finds fault with stb_image's own code */
#define STB_IMAGE_IMPLEMENTATION
#endif
#define STB_IMAGE_STATIC
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_ONLY_GIF
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#define STBI_MALLOC limited_malloc
#define STBI_REALLOC limited_realloc
#define STBI_FREE free
#include <stb/stb_image.h>

td_status td_stb_size(td_encoded *p, const char **why)
{
    int channels;
    *why = NULL;
    if (p->size > INT32_MAX) {
        *why = "the file is too large";
    } else if (td_is_jpeg(p) && !td_jpeg_tables_fit(p)) {
        *why = "its tables of codes are damaged";
    } else {
        set_limit(p, true);
        if (!stbi_info_from_memory(p->bytes, (int)p->size, &p->width, &p->height, &channels)) {
            *why = reason(stbi_failure_reason());
        }
    }
    return TD_OK;
}

td_status td_stb_decode(const td_encoded *p, td_bitmap *bitmap, const char **why)
{
    int channels;
    set_limit(p, false);
    bitmap->rgb = stbi_load_from_memory(p->bytes, (int)p->size, &bitmap->width, &bitmap->height,
                                        &channels, 3);
    *why = bitmap->rgb == NULL ? reason(stbi_failure_reason()) : NULL;
    return TD_OK;
}

#else

static td_status missing(const td_encoded *p)
{
    return td_fail(TD_E_UNSUPPORTED,
                   "%s: this build has no decoder for it: install stb_image (make deps) and build "
                   "again",
                   p->name);
}

td_status td_stb_size(td_encoded *p, const char **why)
{
    *why = NULL;
    return missing(p);
}

td_status td_stb_decode(const td_encoded *p, td_bitmap *bitmap, const char **why)
{
    *why = NULL;
    bitmap->rgb = NULL;
    return missing(p);
}

#endif
