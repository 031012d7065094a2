/* Finding libnccl.so.2. */
#include "dist/engines/nccl/nccl_api.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST = 21800 };

static struct {
    pthread_mutex_t lock;
    bool tried, found;
    td_nccl_api api;
    char message[1024];
} loaded = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* $PLACE/libnccl.so.2; PLACE may hold patterns. NULL: not there. */
static void *open_at(const char *place)
{
    char pattern[512];
    void *library = NULL;
    snprintf(pattern, sizeof pattern, "%s/libnccl.so.2", place);
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && library == NULL; i++) {
            library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
        }
        globfree(&found);
    }
    return library;
}

static void *open_below(const char *variable, const char *folder)
{
    const char *root = getenv(variable);
    char place[400];
    if (root == NULL || root[0] == '\0') {
        return NULL;
    }
    snprintf(place, sizeof place, "%s/%s", root, folder);
    return open_at(place);
}

static void *open_library(void)
{
    static const char *const places[] = {
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/lib",
        "/usr/local/cuda-*/lib64",
        "/usr/local/cuda-*/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/local/lib/python3*/dist-packages/nvidia/nccl/lib",
        "/usr/local/lib/python3*/site-packages/nvidia/nccl/lib",
        "/usr/lib/python3*/site-packages/nvidia/nccl/lib",
    };
    const char *named = getenv("TANDEM_NCCL");
    if (named != NULL && named[0] != '\0') {
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    }
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    library = library != NULL ? library : open_below("CUDA_HOME", "lib64");
    library = library != NULL ? library : open_below("CUDA_HOME", "lib");
    library = library != NULL
                  ? library
                  : open_below("VIRTUAL_ENV", "lib/python3*/site-packages/nvidia/nccl/lib");
    for (size_t i = 0; i < sizeof places / sizeof *places && library == NULL; i++) {
        library = open_at(places[i]);
    }
    return library;
}

/* POSIX lets a pointer to an object be copied into one to a function. */
static bool bind(void *library, const char *symbol, void *to)
{
    void *address = dlsym(library, symbol);
    memcpy(to, &address, sizeof address);
    if (address == NULL) {
        snprintf(loaded.message, sizeof loaded.message,
                 "libnccl.so.2 has no %s: NCCL 2.18 or later is needed", symbol);
    }
    return address != NULL;
}

static bool bind_all(void *library)
{
    bool bound = bind(library, "ncclGetErrorString", &loaded.api.error_string) &&
                 bind(library, "ncclGetLastError", &loaded.api.last_error);
#define TD_NCCL_FUNCTION(member, symbol, parameters)                                               \
    bound = bound && bind(library, #symbol, &loaded.api.member);
    TD_NCCL_FUNCTIONS
#undef TD_NCCL_FUNCTION
    int version = 0;
    if (bound && (loaded.api.get_version(&version) != TD_NCCL_SUCCESS || version < OLDEST)) {
        snprintf(loaded.message, sizeof loaded.message,
                 "libnccl.so.2 is version %d.%d; NCCL 2.18 or later is needed", version / 10000,
                 version / 100 % 100);
        bound = false;
    }
    return bound;
}

static void try_once(void)
{
    const char *named = getenv("TANDEM_NCCL");
    loaded.tried = true;
#ifdef TD_EMULATED
    extern const td_nccl_api td_emulated_nccl; /* tests/emulate/nccl.c */
    loaded.found = named != NULL && strcmp(named, "emulated") == 0;
    if (named == NULL || loaded.found) {
        loaded.api = td_emulated_nccl;
        snprintf(loaded.message, sizeof loaded.message,
                 "NCCL does not know emulated GPUs (TANDEM_NCCL=emulated: one that does)");
        return;
    }
#endif
    void *library = open_library();
    if (library == NULL && named != NULL && named[0] != '\0') {
        snprintf(loaded.message, sizeof loaded.message,
                 "NCCL cannot be loaded from $TANDEM_NCCL: %s", dlerror());
    } else if (library == NULL) {
        snprintf(loaded.message, sizeof loaded.message,
                 "libnccl.so.2 is missing: it was looked for where the loader looks, in "
                 "$CUDA_HOME and /usr/local/cuda*, and in Python's nvidia/nccl; install libnccl2 "
                 "(or pip install nvidia-nccl-cu12), or name the file in TANDEM_NCCL");
    } else {
        loaded.found = bind_all(library);
    }
}

const td_nccl_api *td_nccl_load(void)
{
    pthread_mutex_lock(&loaded.lock);
    if (!loaded.tried) {
        try_once();
    }
    pthread_mutex_unlock(&loaded.lock);
    if (!loaded.found) {
        td_fail(TD_E_UNSUPPORTED, "%s", loaded.message);
    }
    return loaded.found ? &loaded.api : NULL;
}
