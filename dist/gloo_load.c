/* Finding and loading libtandem-gloo.so. */
#include "dist/gloo.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libtandem-gloo.so"

enum { PATH_BYTES = 4096 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const td_gloo_api *loaded;
static char why_not[1024];

/* dlopen's flags. RTLD_DEEPBIND lets libgloo find the epoll_wait of gloo/backoff.cc. Sanitizers
 * replace functions of libc in their own way and do not bear it. */
static int open_flags(void)
{
    int flags = RTLD_NOW | RTLD_LOCAL;
#ifdef RTLD_DEEPBIND
    if (dlsym(RTLD_DEFAULT, "__asan_init") == NULL && dlsym(RTLD_DEFAULT, "__tsan_init") == NULL &&
        dlsym(RTLD_DEFAULT, "__msan_init") == NULL) {
        flags |= RTLD_DEEPBIND;
    }
#endif
    return flags;
}

/* Whether there is such a file and it could be loaded. */
static bool try_path(const char *path)
{
    bool named = strchr(path, '/') != NULL;
    if (named && access(path, F_OK) != 0) {
        return false;
    }
    void *library = dlopen(path, open_flags());
    if (library == NULL) {
        if (named) {
            snprintf(why_not, sizeof why_not, "it is there and cannot be loaded: %s", dlerror());
        }
        return false;
    }
    const td_gloo_api *(*entry)(void);
    *(void **)&entry = dlsym(library, TD_GLOO_ENTRY); /* POSIX: a function fits into a void * */
    const td_gloo_api *api = entry != NULL ? entry() : NULL;
    if (api == NULL || api->version != TD_GLOO_VERSION) {
        snprintf(why_not, sizeof why_not, "%s is of another version of tandem", path);
        return false;
    }
    loaded = api;
    return true;
}

static bool try_folder(const char *folder, const char *below)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s%s/" LIBRARY, folder, below);
    return length > 0 && length < PATH_BYTES && try_path(path);
}

/* Beside the program, or a folder above, where `make` puts it; then where it may be installed. */
static void load(void)
{
    char folder[PATH_BYTES];
    const char *given = getenv("TANDEM_LIB_PATH");
    if (given != NULL && given[0] != '\0' && try_folder(given, "")) {
        return;
    }
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length > 0) {
        folder[length] = '\0';
        *strrchr(folder, '/') = '\0';
        if (try_folder(folder, "") || try_folder(folder, "/..") || try_folder(folder, "/../lib")) {
            return;
        }
    }
    if (!try_path(LIBRARY)) {
        try_folder("/usr/local/lib", "");
    }
}

const td_gloo_api *td_gloo_load(void)
{
    pthread_once(&once, load);
    if (loaded == NULL) {
        td_fail(TD_E_UNSUPPORTED,
                "backend gloo needs " LIBRARY "%s%s: install libgloo-dev and a C++ compiler (`make "
                "deps` does), then `make`; TANDEM_LIB_PATH names a folder that has it; on one host "
                "use shm",
                why_not[0] != '\0' ? ", " : "", why_not);
    }
    return loaded;
}
