/* Opens the vendors' libraries when they are first needed. */
#include "tensor/cuda/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Patterns of folders; "$NAME" at the beginning is an environment variable. */
static const char *const places[] = {
    "$CUDA_HOME/lib64",
    "$CUDA_HOME/lib",
    "$CUDA_PATH/lib64",
    "$VIRTUAL_ENV/lib/python3*/site-packages/nvidia/*/lib",
    "$CONDA_PREFIX/lib",
    "$CONDA_PREFIX/lib/python3*/site-packages/nvidia/*/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/lib",
    "$HOME/.local/lib/python3*/site-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/dist-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/site-packages/nvidia/*/lib",
    "/usr/lib/python3*/dist-packages/nvidia/*/lib",
    "/usr/lib/python3*/site-packages/nvidia/*/lib",
    "/opt/conda/lib/python3*/site-packages/nvidia/*/lib",
    "/opt/conda/lib",
};

/* A search: what has been found, where has been looked, what went wrong. */
typedef struct search {
    const char *file;
    void *library;
    char looked[1024];
    char broken[512]; /* the first file that was there and could not be loaded */
} search;

static void library_note(search *s, const char *place)
{
    size_t length = strlen(s->looked);
    if (length + strlen(place) + 3 < sizeof s->looked) {
        snprintf(s->looked + length, sizeof s->looked - length, "%s%s", length ? ", " : "", place);
    }
}

static void try_folder(search *s, const char *folder)
{
    char path[1024];
    int length = snprintf(path, sizeof path, "%s/%s", folder, s->file);
    if (length < 0 || (size_t)length >= sizeof path || access(path, F_OK) != 0) {
        return;
    }
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (s->library == NULL && s->broken[0] == '\0') {
        snprintf(s->broken, sizeof s->broken, "%s", dlerror());
    }
}

/* A pattern with its variable put in; false if that is not set. */
static bool expand(const char *pattern, char *out, size_t size)
{
    if (pattern[0] != '$') {
        snprintf(out, size, "%s", pattern);
        return true;
    }
    size_t length = strcspn(pattern, "/");
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(length - 1), pattern + 1);
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') {
        return false;
    }
    return (size_t)snprintf(out, size, "%s%s", value, pattern + length) < size;
}

static void try_pattern(search *s, const char *pattern)
{
    char text[1024];
    if (!expand(pattern, text, sizeof text)) {
        return;
    }
    library_note(s, text);
    glob_t found;
    if (glob(text, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && s->library == NULL; i++) {
            try_folder(s, found.gl_pathv[i]);
        }
        globfree(&found);
    }
}

static void try_named(search *s, const char *folders)
{
    for (const char *at = folders; s->library == NULL;) {
        size_t length = strcspn(at, ":");
        char folder[1024];
        if (length > 0 && length < sizeof folder) {
            snprintf(folder, sizeof folder, "%.*s", (int)length, at);
            library_note(s, folder);
            try_folder(s, folder);
        }
        if (at[length] == '\0') {
            return;
        }
        at += length + 1;
    }
}

static void try_everywhere(search *s)
{
    library_note(s, "the dynamic linker's folders");
    s->library = dlopen(s->file, RTLD_NOW | RTLD_LOCAL);
    if (s->library == NULL) {
        /* "cannot open shared object file" of the library itself means: it is not there. */
        const char *error = dlerror();
        if (strncmp(error, s->file, strlen(s->file)) != 0) {
            snprintf(s->broken, sizeof s->broken, "%s", error);
        }
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0] && s->library == NULL; i++) {
        try_pattern(s, places[i]);
    }
}

td_status td_cuda_library_open(const char *title, const char *file, void **library)
{
    search s = { .file = file };
    const char *named = getenv("TANDEM_CUDA_LIBRARIES");
    if (named != NULL && named[0] != '\0') {
        try_named(&s, named);
    } else {
        try_everywhere(&s);
    }
    *library = s.library;
    if (s.library != NULL) {
        return TD_OK;
    }
    TD_CHECK(s.broken[0] == '\0', TD_E_DEVICE, "%s cannot be loaded: %s", title, s.broken);
    return td_fail(
        TD_E_DEVICE,
        "%s is missing: %s was not found (looked in: %s); install it, or name its folder "
        "in TANDEM_CUDA_LIBRARIES",
        title, file, s.looked);
}

td_status td_cuda_library_bind(void *library, const char *file, const char *const *names,
                               void *const *pointers, int count)
{
    for (int i = 0; i < count; i++) {
        void *function = dlsym(library, names[i]);
        TD_CHECK(function != NULL, TD_E_DEVICE,
                 "%s (%s) has no function %s: another version is needed", file,
                 td_cuda_library_path(library), names[i]);
        memcpy(pointers[i], &function, sizeof function);
    }
    return TD_OK;
}

const char *td_cuda_library_path(void *library)
{
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == NULL) {
        return "?";
    }
    return map->l_name;
}
