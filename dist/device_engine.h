/* Collectives on the memory of GPUs. A group has an engine for CPU memory (backend.h) and, from the
 * first collective on a GPU's tensor on, one for that GPU beside it: NCCL, or, where there is none
 * or two ranks share a GPU, copies by way of the host ("staged").
 *
 * Nothing here waits for the GPU: a collective comes behind the work that the GPU has been asked
 * for so far, and td_work_wait puts later work of the GPU behind the collective. Only where it is
 * given a time-out does the host wait. */
#ifndef TD_DIST_DEVICE_ENGINE_H
#define TD_DIST_DEVICE_ENGINE_H

#include "dist/backend.h"
#include "tensor/streams.h"

typedef struct td_device_engine td_device_engine;

typedef struct td_device_engine_type {
    const char *name; /* "nccl" */
    /* Asks for a collective; *ticket > 0 is its number in the engine, rising. */
    td_status (*launch)(td_device_engine *engine, const td_collective *c, uint64_t *ticket);
    /* The device's later work comes behind that collective. Once for each. */
    td_status (*join)(td_device_engine *engine, uint64_t ticket);
    td_status (*join_all)(td_device_engine *engine); /* NULL: each has to be joined */
    bool (*reached)(td_device_engine *engine, uint64_t ticket);
    /* For the watchdog: whether something is under way, and since when; the oldest. A failure that
     * the engine has noticed is returned. */
    td_status (*look)(td_device_engine *engine, td_collective *oldest, double *begun);
    /* A graph of the device's work (tensor/graph/captured.h) begins to be recorded, with all collectives
     * joined; ends to be (on); was launched: c stands for it. NULL: collectives cannot be part of
     * one. */
    td_status (*record)(td_device_engine *engine, bool begins);
    td_status (*launched)(td_device_engine *engine, const td_collective *c);
    void (*abort)(td_device_engine *engine); /* any thread, any number of times */
    void (*destroy)(td_device_engine *engine);
} td_device_engine_type;

struct td_device_engine {
    const td_device_engine_type *type;
    td_device device;
};

/* Whether a tensor's collectives go to a device engine of the group. */
bool td_group_uses_device(const td_group *group, const td_tensor *t);

/* As td_submit, for memory of the device; makes the engine first (collective). */
td_status td_device_submit(td_group *group, td_collective *c, td_device device, td_work **work);

/* All collectives that were launched so far are joined at once: one event instead of one for each.
 * Nothing happens if there is no device engine. */
td_status td_device_join_all(td_group *group);

/* For td_work_wait: the host waits until the collective is over; after `timeout` seconds the group
 * is broken. Then it can be joined without waiting. */
td_status td_device_await(td_group *group, td_device_engine *engine, uint64_t ticket,
                          const td_collective *c, double timeout);

/* The watchdog's look. */
void td_device_look(td_group *group);
/* A broken group's engine is freed of what it waits for; at the end it is destroyed. */
void td_device_abort(td_group *group);
void td_device_end(td_group *group);

/* For tests: the group takes an engine for tensors of this device, be it a CPU. */
void td_device_engine_set(td_group *group, td_device_engine *engine);

#endif
