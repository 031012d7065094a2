/* Plans of library calls on disk: key -> text. One file a device and library version, so that a
 * choice that took time (autotuning, run-time compilation) is made once. Knows nothing of CUDA.
 *
 * The file (text, so that it can be looked at):
 *
 *     tandem-plans 1
 *     for NVIDIA H200, sm_90, cuDNN 91900          whom it is for, up to the line's end
 *     plan 1186 7f3a9c02 conv forward bf16 ...     bytes, CRC-32 (zlib's) and key of what follows
 *     {...}
 *
 * It is written to a temporary and renamed. A file that is for somebody else or damaged is left
 * unused: plans are then chosen anew, and the next save replaces it. */
#ifndef TD_TENSOR_PLAN_CACHE_H
#define TD_TENSOR_PLAN_CACHE_H

#include "tensor/error.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TD_PLAN_KEY_MAX = 200,       /* bytes, with the zero; printable, no line breaks */
    TD_PLAN_TEXT_MAX = 8 << 20,  /* bytes of one plan */
    TD_PLAN_FILE_MAX = 64 << 20, /* bytes of a file: a larger one is no cache of ours */
    TD_PLAN_COUNT_MAX = 20000,
};

typedef struct td_plan_cache td_plan_cache;

/* An empty cache. owner: whom the plans are for, one line; it is copied. NULL: out of memory. */
td_plan_cache *td_plan_cache_new(const char *owner);
void td_plan_cache_free(td_plan_cache *cache); /* NULL is fine */

/* The plan of a key; NULL if there is none. Lives until the next put, read or free. */
const char *td_plan_cache_get(const td_plan_cache *cache, const char *key, size_t *bytes);

/* Keeps a copy of a plan, in place of an older one. TD_E_ARG: a key or a text that a file cannot
 * hold. TD_E_NOMEM. */
td_status td_plan_cache_put(td_plan_cache *cache, const char *key, const void *text, size_t bytes);
/* Until it is put again, no file gives the key back, and a save leaves it out. */
void td_plan_cache_remove(td_plan_cache *cache, const char *key);
int td_plan_cache_count(const td_plan_cache *cache);

/* Takes over the plans of a file's contents that the cache has not. All or nothing: TD_E_FORMAT
 * says what is wrong (another owner too), and the cache is as it was. */
td_status td_plan_cache_parse(td_plan_cache *cache, const void *contents, size_t bytes);

/* What td_plan_cache_parse reads, with a zero behind it; to be freed. NULL: out of memory. */
char *td_plan_cache_text(const td_plan_cache *cache, size_t *bytes);

/* Parses a file; TD_E_NOTFOUND if it does not exist. */
td_status td_plan_cache_load(td_plan_cache *cache, const char *path);

/* Writes all plans, and those of the file that the cache has not (of another process, say), in
 * place of the file; makes its folder. */
td_status td_plan_cache_save(td_plan_cache *cache, const char *path);

/* ---- a cache and the file that it is kept in ----
 *
 * Files are in $TANDEM_CACHE, $XDG_CACHE_HOME/tandem or ~/.cache/tandem, one for each owner;
 * TANDEM_CACHE=off: none. One store an owner and process. Any thread may call these. */

typedef struct td_plan_store td_plan_store;

/* The store of an owner, made and read when it is asked for first; never ended. A file that cannot
 * be used is left alone with a notice, and replaced by the next save. NULL: out of memory. All
 * below do nothing with NULL. */
td_plan_store *td_plan_store_of(const char *owner);

/* A copy, with a zero behind it, to be freed; NULL: there is none. */
char *td_plan_store_get(td_plan_store *store, const char *key, size_t *bytes);
/* Written when the process ends, and now and then before. */
void td_plan_store_put(td_plan_store *store, const char *key, const char *text, size_t bytes);
/* A plan that fails is not to be met again: the file is written at once. */
void td_plan_store_remove(td_plan_store *store, const char *key);
/* Writes what is new in all stores. */
void td_plan_stores_save(void);

#endif
