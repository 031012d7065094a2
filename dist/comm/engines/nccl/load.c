/* Finding libnccl.so.2. */
#include "dist/comm/engines/nccl/nccl_api.h"

#include "tensor/backend.h"

#include <dlfcn.h>
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

/* $TANDEM_NCCL, or where cuDNN and cuBLASLt are looked for. NULL: td_last_error says where that
 * was. */
static void *open_library(void)
{
    const char *named = getenv("TANDEM_NCCL");
    const td_backend *cuda = td_backend_of((td_device){ .type = TD_DEVICE_CUDA });
    void *library = NULL;
    if (named != NULL && named[0] != '\0') {
        library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            (void)td_fail(TD_E_DEVICE, "NCCL cannot be loaded from $TANDEM_NCCL: %s", dlerror());
        }
    } else if (cuda == NULL) {
        (void)td_fail(TD_E_UNSUPPORTED, "NCCL connects GPUs, and this build has no CUDA");
    } else {
        (void)cuda->library("NCCL", "libnccl.so.2", &library);
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
    loaded.tried = true;
#ifdef TD_EMULATED
    const char *named = getenv("TANDEM_NCCL");
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
    loaded.found = library != NULL && bind_all(library);
    if (library == NULL) {
        snprintf(loaded.message, sizeof loaded.message, "%s", td_last_error());
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
