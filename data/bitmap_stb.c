/* stb_image, and nothing else, in a file of its own: its warnings are not ours. */
#include "data/bitmap.h"

#ifdef TD_HAVE_STB

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
#include <stb/stb_image.h>

td_status td_stb_size(td_encoded *p, const char **why)
{
    int channels;
    *why = NULL;
    if (p->size > INT32_MAX) {
        *why = "the file is too large";
    } else if (td_is_jpeg(p) && !td_jpeg_tables_fit(p)) {
        *why = "its tables of codes are damaged";
    } else if (!stbi_info_from_memory(p->bytes, (int)p->size, &p->width, &p->height, &channels)) {
        *why = stbi_failure_reason();
    }
    return TD_OK;
}

td_status td_stb_decode(const td_encoded *p, td_bitmap *bitmap, const char **why)
{
    int channels;
    bitmap->rgb = stbi_load_from_memory(p->bytes, (int)p->size, &bitmap->width, &bitmap->height,
                                        &channels, 3);
    *why = bitmap->rgb == NULL ? stbi_failure_reason() : NULL;
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
