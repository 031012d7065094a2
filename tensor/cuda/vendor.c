/* Workspace of the vendors' libraries, and their plans on disk. */
#include "tensor/cuda/vendor.h"

#include "tensor/cuda/cuda.h"
#include "tensor/tune/store.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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

static char *owners[TD_MAX_DEVICES]; /* never freed: one a GPU */

static const char *owner_of(td_device device)
{
    pthread_mutex_lock(&lock);
    const char *owner = owners[device.index];
    pthread_mutex_unlock(&lock);
    return owner;
}

void td_vendor_plans_open(td_device device, const char *owner)
{
    pthread_mutex_lock(&lock);
    if (owners[device.index] == NULL) {
        owners[device.index] = strdup(owner);
    }
    pthread_mutex_unlock(&lock);
}

char *td_vendor_plan_get(td_device device, const char *key, size_t *bytes)
{
    return td_plan_get(owner_of(device), key, bytes);
}

void td_vendor_plan_put(td_device device, const char *key, const char *text, size_t bytes)
{
    td_plan_put(owner_of(device), key, text, bytes);
}

void td_vendor_plan_remove(td_device device, const char *key)
{
    td_plan_remove(owner_of(device), key);
}
