#include "tensor/cuda/vendor.h"

#include "tensor/cuda/cuda.h"
#include "tensor/plan_cache.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void td_vendor_notice(const char *format, ...)
{
    enum { KEPT = 16 };
    static char said[KEPT][160];
    static int count;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    bool again = count == KEPT;
    for (int i = 0; i < count; i++) {
        again = again || strncmp(said[i], text, sizeof said[i] - 1) == 0;
    }
    if (!again) {
        snprintf(said[count], sizeof said[count], "%.*s", (int)sizeof said[count] - 1, text);
        count++;
        fprintf(stderr, "tandem: %s\n", text);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- workspace ---- */

void *td_vendor_workspace(td_device device, size_t bytes, void **scratch)
{
    static void *shared[TD_MAX_DEVICES];
    *scratch = NULL;
    if (bytes == 0) {
        return NULL;
    }
    if (bytes > TD_VENDOR_WORKSPACE) {
        return *scratch = td_scratch(device, bytes);
    }
    pthread_mutex_lock(&lock);
    if (shared[device.index] == NULL) {
        shared[device.index] = td_cuda_take(device, TD_VENDOR_WORKSPACE);
    }
    void *memory = shared[device.index];
    pthread_mutex_unlock(&lock);
    TD_REQUIRE(memory != NULL, TD_NOWHERE, "%s", td_last_error());
    return memory;
}

/* ---- plans ---- */

enum { SAVE_SECONDS = 5 };

static struct plans {
    td_plan_cache *cache; /* NULL: none */
    char path[4096];      /* "": not kept on disk */
    bool changed;
    time_t saved;
} plans[TD_MAX_DEVICES];

/* The folder of caches, with a slash; false: there is to be none. */
static bool cache_folder(char *folder, size_t size)
{
    const char *chosen = getenv("TANDEM_CACHE"), *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int length = 0;
    if (chosen != NULL && chosen[0] != '\0') {
        length = strcmp(chosen, "off") == 0 ? 0 : snprintf(folder, size, "%s/", chosen);
    } else if (xdg != NULL && xdg[0] == '/') {
        length = snprintf(folder, size, "%s/tandem/", xdg);
    } else if (home != NULL && home[0] == '/') {
        length = snprintf(folder, size, "%s/.cache/tandem/", home);
    }
    return length > 0 && (size_t)length < size;
}

/* "plans-NVIDIA-H200-sm_90-cuDNN-91900.txt" */
static void plans_path(struct plans *p, const char *owner)
{
    char folder[2048], name[512];
    if (!cache_folder(folder, sizeof folder)) {
        p->path[0] = '\0';
        return;
    }
    size_t length = 0;
    for (const char *at = owner; *at != '\0' && length + 1 < sizeof name; at++) {
        bool plain = isalnum((unsigned char)*at) || *at == '_' || *at == '.';
        if (plain) {
            name[length++] = *at;
        } else if (length > 0 && name[length - 1] != '-') {
            name[length++] = '-';
        }
    }
    name[length] = '\0';
    snprintf(p->path, sizeof p->path, "%splans-%s.txt", folder, name);
}

void td_vendor_plans_open(td_device device, const char *owner)
{
    static bool at_exit;
    struct plans *p = &plans[device.index];
    pthread_mutex_lock(&lock);
    td_status status = TD_OK;
    if (p->cache == NULL && (p->cache = td_plan_cache_new(owner)) != NULL) {
        plans_path(p, owner);
        status = p->path[0] != '\0' ? td_plan_cache_load(p->cache, p->path) : TD_OK;
        if (!at_exit) {
            at_exit = atexit(td_vendor_plans_save) == 0;
        }
    }
    pthread_mutex_unlock(&lock);
    if (status != TD_OK && status != TD_E_NOTFOUND) {
        td_vendor_notice("the kept plans are not used, and made anew: %s", td_last_error());
    }
}

/* Under the lock. Returns whether it went well. */
static bool save(struct plans *p)
{
    if (p->cache == NULL || !p->changed || p->path[0] == '\0') {
        return true;
    }
    td_status status = td_plan_cache_save(p->cache, p->path);
    p->changed = false;
    p->saved = time(NULL);
    if (status != TD_OK) {
        p->path[0] = '\0'; /* not again and again */
    }
    return status == TD_OK;
}

void td_vendor_plans_save(void)
{
    bool good = true;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < TD_MAX_DEVICES; i++) {
        good = save(&plans[i]) && good;
    }
    pthread_mutex_unlock(&lock);
    if (!good) {
        td_vendor_notice("plans cannot be kept for the next run: %s", td_last_error());
    }
}

char *td_vendor_plan_get(td_device device, const char *key, size_t *bytes)
{
    char *copy = NULL;
    pthread_mutex_lock(&lock);
    const td_plan_cache *cache = plans[device.index].cache;
    const char *text = cache != NULL ? td_plan_cache_get(cache, key, bytes) : NULL;
    if (text != NULL && (copy = malloc(*bytes + 1)) != NULL) {
        memcpy(copy, text, *bytes);
        copy[*bytes] = '\0';
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

void td_vendor_plan_put(td_device device, const char *key, const char *text, size_t bytes)
{
    bool good = true;
    struct plans *p = &plans[device.index];
    pthread_mutex_lock(&lock);
    if (p->cache != NULL && td_plan_cache_put(p->cache, key, text, bytes) == TD_OK) {
        p->changed = true;
        p->saved = p->saved != 0 ? p->saved : time(NULL);
        good = time(NULL) - p->saved < SAVE_SECONDS || save(p);
    }
    pthread_mutex_unlock(&lock);
    if (!good) {
        td_vendor_notice("plans cannot be kept for the next run: %s", td_last_error());
    }
}

/* Saved at once: a run that a plan broke may not come to its end. */
void td_vendor_plan_remove(td_device device, const char *key)
{
    struct plans *p = &plans[device.index];
    size_t bytes;
    bool good = true;
    pthread_mutex_lock(&lock);
    if (p->cache != NULL && td_plan_cache_get(p->cache, key, &bytes) != NULL) {
        td_plan_cache_remove(p->cache, key);
        p->changed = true;
        good = save(p);
    }
    pthread_mutex_unlock(&lock);
    if (!good) {
        td_vendor_notice("plans cannot be kept for the next run: %s", td_last_error());
    }
}
