/* Collectives on the memory of GPUs. A group has an engine for CPU memory (engine.h) and, from the
 * first collective on a GPU's tensor on, an engine for that GPU: NCCL. If there is no NCCL or two
 * ranks share a GPU, and for all messages, collectives are staged: they run on copies in the host's
 * memory.
 *
 * With an engine nothing waits for the GPU. A collective runs after all earlier work of the GPU,
 * and td_work_wait makes later work of the GPU run after the collective. The host waits only if
 * td_work_wait has a time-out. */
#pragma once

#include "dist/comm/engine.h"
#include "tensor/backend.h"

typedef struct td_device_engine td_device_engine;

typedef struct td_device_engine_type {
    const char *name; /* "nccl" */
    /* Launches a collective. *ticket: its number in the engine, from 1, rising. */
    td_status (*launch)(td_device_engine *engine, const td_collective *c, uint64_t *ticket);
    /* Later work of the device runs after that collective. Once for each ticket. */
    td_status (*join)(td_device_engine *engine, uint64_t ticket);
    td_status (*join_all)(td_device_engine *engine);
    bool (*reached)(td_device_engine *engine, uint64_t ticket);
    /* For the watchdog: the oldest collective that still runs, and when it began. Returns a failure
     * that the engine has noticed. */
    td_status (*look)(td_device_engine *engine, td_collective *oldest, double *begun);
    /* A captured step (tensor/graph/captured.h). record: its recording begins, when all collectives
     * are joined, or ends. launched: the graph was launched, and c stands for its collectives. */
    td_status (*record)(td_device_engine *engine, bool begins);
    td_status (*launched)(td_device_engine *engine, const td_collective *c);
    void (*abort)(td_device_engine *engine); /* any thread, any number of times */
    void (*destroy)(td_device_engine *engine);
} td_device_engine_type;

struct td_device_engine {
    const td_device_engine_type *type;
    td_device device;
};

/* Whether this process has a GPU, and NCCL; otherwise td_last_error(). */
bool td_device_can_use_nccl(int local_rank);

/* Whether a tensor's collectives go to a device engine of the group. */
bool td_group_uses_device(const td_group *group, const td_tensor *t);

/* As td_submit, for memory of the device. The first call chooses the engine, which is collective.
 */
td_status td_device_submit(td_group *group, td_collective *c, td_device device, td_work **work);

/* Joins all collectives that were launched so far, by one event. Does nothing if there is no device
 * engine. */
td_status td_device_join_all(td_group *group);

/* For td_work_wait with a time-out: the host waits until the collective is done. After `timeout`
 * seconds the group is broken. */
td_status td_device_await(td_group *group, td_device_engine *engine, uint64_t ticket,
                          const td_collective *c, double timeout);

/* Called by the watchdog, again and again. */
void td_device_look(td_group *group);
/* Aborts a broken group's device engine; destroys it when the group ends. */
void td_device_abort(td_group *group);
void td_device_end(td_group *group);

/* ---- staged.c ---- */

/* A staged collective's memory on the host. */
typedef struct td_host_copy td_host_copy;

/* Copies the data to the host, which waits for the GPU, and queues the collective there. Meanwhile
 * the GPU works on. */
td_status td_staged_submit(td_group *group, const td_collective *c, td_device device,
                           td_work **work);
/* When the collective has ended: copies the result to the GPU unless it failed. The memory serves
 * later collectives. Returns `status`. */
td_status td_staged_end(td_group *group, td_host_copy *staged, td_status status);
/* Frees a list of such memory. */
void td_staged_free(td_host_copy *list);
