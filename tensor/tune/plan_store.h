/* Plans and the file that they are kept in (plan_cache.h): $TANDEM_CACHE, $XDG_CACHE_HOME/tandem or
 * ~/.cache/tandem, a file for each owner; TANDEM_CACHE=off: none. One store an owner and process.
 * Any thread may call these. */
#ifndef TD_TENSOR_PLAN_STORE_H
#define TD_TENSOR_PLAN_STORE_H

#include <stddef.h>

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
