#include "tensor/tune/store.h"

#include "tensor/text.h"

#include <ctype.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAVE_SECONDS = 5 };

struct td_plan_store {
    char *owner;
    td_plan_cache *cache;
    char path[4096]; /* "": not kept on disk */
    bool changed;
    time_t saved;
    td_plan_store *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static td_plan_store *stores;

/* ---- where ---- */

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
static void find_path(td_plan_store *s)
{
    char folder[2048], name[512];
    if (!cache_folder(folder, sizeof folder)) {
        s->path[0] = '\0';
        return;
    }
    size_t length = 0;
    for (const char *at = s->owner; *at != '\0' && length + 1 < sizeof name; at++) {
        bool plain = isalnum((unsigned char)*at) || *at == '_' || *at == '.';
        if (plain) {
            name[length++] = *at;
        } else if (length > 0 && name[length - 1] != '-') {
            name[length++] = '-';
        }
    }
    name[length] = '\0';
    snprintf(s->path, sizeof s->path, "%splans-%s.txt", folder, name);
}

/* ---- opening and saving, under the lock ---- */

static td_plan_store *open_store(const char *owner)
{
    td_plan_store *s = calloc(1, sizeof *s);
    if (s == NULL || (s->owner = strdup(owner)) == NULL ||
        (s->cache = td_plan_cache_new(owner)) == NULL) {
        if (s != NULL) {
            free(s->owner);
        }
        free(s);
        return NULL;
    }
    find_path(s);
    if (stores == NULL) {
        atexit(td_plan_stores_save);
    }
    s->next = stores;
    stores = s;
    td_status status = s->path[0] != '\0' ? td_plan_cache_load(s->cache, s->path) : TD_OK;
    if (status != TD_OK && status != TD_E_NOTFOUND) {
        td_notice("the kept plans are not used, and made anew: %s", td_last_error());
    }
    return s;
}

static void save(td_plan_store *s)
{
    if (!s->changed || s->path[0] == '\0') {
        return;
    }
    td_status status = td_plan_cache_save(s->cache, s->path);
    s->changed = false;
    s->saved = time(NULL);
    if (status != TD_OK) {
        s->path[0] = '\0'; /* not again and again */
        td_notice("plans cannot be kept for the next run: %s", td_last_error());
    }
}

/* ---- for all ---- */

td_plan_store *td_plan_store_of(const char *owner)
{
    pthread_mutex_lock(&lock);
    td_plan_store *s = stores;
    while (s != NULL && strcmp(s->owner, owner) != 0) {
        s = s->next;
    }
    if (s == NULL) {
        s = open_store(owner);
    }
    pthread_mutex_unlock(&lock);
    return s;
}

void td_plan_stores_save(void)
{
    pthread_mutex_lock(&lock);
    for (td_plan_store *s = stores; s != NULL; s = s->next) {
        save(s);
    }
    pthread_mutex_unlock(&lock);
}

char *td_plan_store_get(td_plan_store *store, const char *key, size_t *bytes)
{
    char *copy = NULL;
    if (store == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    const char *text = td_plan_cache_get(store->cache, key, bytes);
    if (text != NULL && (copy = malloc(*bytes + 1)) != NULL) {
        memcpy(copy, text, *bytes);
        copy[*bytes] = '\0';
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

void td_plan_store_put(td_plan_store *store, const char *key, const char *text, size_t bytes)
{
    if (store == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (td_plan_cache_put(store->cache, key, text, bytes) == TD_OK) {
        store->changed = true;
        store->saved = store->saved != 0 ? store->saved : time(NULL);
        if (time(NULL) - store->saved >= SAVE_SECONDS) {
            save(store);
        }
    }
    pthread_mutex_unlock(&lock);
}

void td_plan_store_remove(td_plan_store *store, const char *key)
{
    size_t bytes;
    if (store == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (td_plan_cache_get(store->cache, key, &bytes) != NULL) {
        td_plan_cache_remove(store->cache, key);
        store->changed = true;
        save(store); /* a run that a plan broke may not come to its end */
    }
    pthread_mutex_unlock(&lock);
}
