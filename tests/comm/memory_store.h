/* A store in this process's memory, for many messages. */
#pragma once

#include "dist/comm/store/table.h"

#include <pthread.h>

typedef struct memory_store {
    td_store store;
    pthread_mutex_t lock;
    td_table table;
} memory_store;

static td_status memory_call(td_store *store, const td_store_request *r, char **reply, size_t *size)
{
    memory_store *m = (memory_store *)store;
    td_table_answer answer;
    pthread_mutex_lock(&m->lock);
    td_status status = td_table_serve(&m->table, r, &answer);
    if (status == TD_OK && answer.waits) {
        status = td_fail(TD_E_TIMEOUT, "%s is not there", r->key);
    } else if (status == TD_OK) {
        *reply = td_bytes_copy(answer.value, answer.size);
        *size = answer.size;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

static const td_store_kind memory_kind = { "memory", memory_call, NULL };

#define MEMORY_STORE                                                                               \
    {                                                                                              \
        .store = { &memory_kind, 60 }, .lock = PTHREAD_MUTEX_INITIALIZER                           \
    }
