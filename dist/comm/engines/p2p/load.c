/* Finding and loading libtandem-gloo.so and libtandem-mpi.so. */
#include "dist/comm/engines/p2p/p2p.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

typedef struct shim {
    const char *name, *file;
    bool global;     /* RTLD_GLOBAL: the library's own plugins need its symbols */
    const char *how; /* how to install it */
    bool looked;
    const td_p2p_api *loaded;
    char why_not[1024];
} shim;

static shim shims[] = {
    { .name = "gloo",
      .file = "libtandem-gloo.so",
      .how = "install libgloo-dev and a C++ compiler (`make deps` does), then `make`" },
    { .name = "mpi",
      .file = "libtandem-mpi.so",
      .global = true,
      .how = "install libopenmpi-dev and openmpi-bin, or load your cluster's MPI "
             "module so that there is an mpicc, then `make`" },
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* dlopen's flags. With RTLD_DEEPBIND libgloo finds the epoll_wait of gloo/backoff.cc. Sanitizers,
 * which replace functions of libc, do not work with it. */
static int open_flags(const shim *s)
{
    int flags = RTLD_NOW | (s->global ? RTLD_GLOBAL : RTLD_LOCAL);
#ifdef RTLD_DEEPBIND
    if (!s->global && dlsym(RTLD_DEFAULT, "__asan_init") == NULL &&
        dlsym(RTLD_DEFAULT, "__tsan_init") == NULL && dlsym(RTLD_DEFAULT, "__msan_init") == NULL) {
        flags |= RTLD_DEEPBIND;
    }
#endif
    return flags;
}

/* Whether the file exists and was loaded. */
static bool try_path(shim *s, const char *path)
{
    bool named = strchr(path, '/') != NULL;
    if (named && access(path, F_OK) != 0) {
        return false;
    }
    void *library = dlopen(path, open_flags(s));
    if (library == NULL) {
        if (named) {
            snprintf(s->why_not, sizeof s->why_not, ", it is there and cannot be loaded: %s",
                     dlerror());
        }
        return false;
    }
    const td_p2p_api *(*entry)(void);
    *(void **)&entry = dlsym(library, TD_P2P_ENTRY); /* POSIX: a function fits into a void * */
    const td_p2p_api *api = entry != NULL ? entry() : NULL;
    if (api == NULL || api->version != TD_P2P_VERSION) {
        snprintf(s->why_not, sizeof s->why_not, ", %s is of another version of tandem", path);
        return false;
    }
    s->loaded = api;
    return true;
}

/* private: not where everybody may put a file, as in /tmp. */
static bool try_folder(shim *s, const char *folder, const char *below, bool private)
{
    char path[PATH_BYTES];
    struct stat info;
    int length = snprintf(path, sizeof path, "%s%s", folder, below);
    if (folder[0] == '\0' || length >= PATH_BYTES ||
        (private && (stat(path, &info) != 0 || (info.st_mode & S_IWOTH) != 0))) {
        return false;
    }
    length = snprintf(path, sizeof path, "%s%s/%s", folder, below, s->file);
    return length < PATH_BYTES && try_path(s, path);
}

/* Next to the library or the program, or a folder above, where `make` puts it; then where it may be
 * installed. */
static void load(shim *s)
{
    char library[PATH_BYTES] = "", program[PATH_BYTES] = "";
    const char *given = getenv("TANDEM_LIB_PATH");
    Dl_info own; /* libtandem.so, if this is a part of it */
    if (dladdr(&lock, &own) != 0 && own.dli_fname[0] == '/') {
        snprintf(library, sizeof library, "%s", own.dli_fname);
        *strrchr(library, '/') = '\0';
    }
    if (readlink("/proc/self/exe", program, sizeof program - 1) > 0) {
        *strrchr(program, '/') = '\0';
    }
    (void)(try_folder(s, given != NULL ? given : "", "", false) ||
           try_folder(s, library, "", true) || try_folder(s, program, "", true) ||
           try_folder(s, program, "/..", true) || try_folder(s, program, "/../lib", true) ||
           try_path(s, s->file) || try_folder(s, "/usr/local/lib", "", false));
}

const td_p2p_api *td_p2p_load(const char *name)
{
    shim *s = &shims[strcmp(name, "mpi") == 0];
    pthread_mutex_lock(&lock);
    if (!s->looked) {
        s->looked = true;
        load(s);
    }
    pthread_mutex_unlock(&lock);
    if (s->loaded == NULL) {
        td_fail(
            TD_E_UNSUPPORTED,
            "backend %s needs %s%s: %s; TANDEM_LIB_PATH names a folder that has it; on one host "
            "use shm",
            s->name, s->file, s->why_not, s->how);
    }
    return s->loaded;
}
