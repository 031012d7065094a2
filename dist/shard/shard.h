/* Sharding, seen from inside:
 *   zero.h    the public header
 *   shard.c   td_zero: what is divided, and what the optimizer and checkpoints need
 *   units.c   which modules are units, and where their parameters lie
 *   values.c  gathers a unit's values before the unit runs, and drops them afterwards
 *   wire.c    values travel as bf16 (.wire)
 *   offload.c windows in the host's memory, or in files
 *   grads.c   memory for a unit's gradients in backward; the average goes into the window
 *
 * The flat space is cut into units, and each unit into one piece for each rank. A rank's pieces of
 * all units are the rank's window. Of two units and two ranks:
 *
 *     flat space   | unit 0: piece 0, piece 1 | unit 1: piece 0, piece 1 |
 *     rank 0 has   | piece 0 of unit 0        | piece 0 of unit 1        |
 *     rank 1 has   | piece 1 of unit 0        | piece 1 of unit 1        |
 *
 * The values and the gradients of a whole unit are a tensor each, of which the parameters are
 * views. The tensor exists as long as the model, but has memory only while it holds a slot.
 *
 * Woven values (td_group_weave) are always here, and nothing is gathered: the windows of all ranks
 * are shared memory, which each rank maps side by side. Then a rank must not change a value that
 * another rank still reads, nor read a value that another rank has yet to change. The first holds
 * because a rank steps after all units are averaged: that takes the gradients of every rank, and a
 * rank has a unit's gradients when it has read the unit's values for the last time. The second
 * holds because all ranks meet after a step. */
#pragma once

#include "dist/ddp/ddp.h"
#include "dist/shard/zero.h"
#include "dist/comm/collectives.h"
#include "tensor/extend.h"
#include "tensor/storage.h"
#include "nn/shared/shared.h"

/* Slots of values: one for the unit that runs, and one for the unit that is gathered ahead. Slots
 * of gradients: one for the unit whose backward runs, and one for the unit that is being averaged.
 */
enum { TD_SLOTS = 2 };

typedef struct td_sharding td_sharding;
typedef struct td_shard_unit td_shard_unit;

typedef struct td_slot {
    td_tensor *memory;
    td_tensor *packed;   /* of values, with .wire: this rank's piece as it travels */
    td_shard_unit *unit; /* whose memory it is now; NULL: free */
} td_slot;

typedef struct td_slots {
    td_slot value, grad;
} td_slots;

struct td_shard_unit {
    td_sharding *sharding;
    td_module *module;    /* NULL: the flat space is one unit, which belongs to none */
    const char *path;     /* the module's name; the module owns it */
    int number;           /* in units and in td_ddp_units */
    int64_t begin, count; /* in the flat space */
    int64_t narrow;       /* so many elements at its beginning travel as bf16; 0: all as they are */
    td_tensor *values, *grads;       /* NULL: they are part of the flat memory, and always here */
    td_slot *value_slot, *grad_slot; /* their memory; NULL: they have none now */
    td_slots home;    /* slots of this unit alone: the root's always, others' at times */
    td_work *gather;  /* of the values, under way; NULL: none is */
    bool unpacks;     /* that gather brings bf16 */
    uint32_t version; /* of the window when the values were gathered */
    td_shard_unit *before, *after; /* in the latest forward: guesses for the next one */
};

/* Which units ran. */
typedef struct td_shard_route {
    td_shard_unit *current; /* the unit that was entered last, except for the root */
    td_shard_unit *last;    /* the unit that ran last in the running forward; NULL: none yet */
    td_shard_unit *first;   /* the first unit of the latest forward */
} td_shard_route;

struct td_sharding {
    td_ddp_part part; /* first */
    td_ddp_state *ddp;
    td_zero_options options;
    td_group *group;      /* the ranks that divide the model: along the mesh's dp, or all */
    td_group *replicas;   /* the ranks that have equal windows, along rep; NULL: there are none */
    int rank, ranks;      /* in group */
    td_device device;     /* of the model; windows are elsewhere if they are offloaded from a GPU */
    td_tensor *landing;   /* on the host, for such windows: where a unit's piece of the gradients
                             arrives; NULL: windows are on device */
    td_shard_unit *units; /* in the order of memory: as backward meets them; the root is last */
    int count;
    int64_t *cuts; /* where units begin, and where the last ends */
    int *of_param; /* each parameter's unit */
    bool *held;    /* of each parameter: the window has a gradient, and the next one is added */
    td_slots slots[TD_SLOTS];
    td_shard_unit *root; /* the parameters in no block; runs around all others; NULL: none */
    td_shard_route route;
    bool whole;    /* td_unshard: values stay */
    bool woven;    /* values are always here */
    double gather; /* seconds of the last step */
};

td_sharding *td_sharding_of(const td_ddp_state *s);

/* units.c: finds the units, and moves the parameters there. peers->cuts are not set yet.
 * Collective; may fail on this rank alone. */
td_status td_shard_lay_out(td_sharding *sh, td_params_peers *peers);

/* This rank's piece of a unit's values, by value. */
td_tensor td_shard_own(const td_shard_unit *u);
/* td_slot_give makes a slot the memory of t, a unit's values or grads; td_slot_take takes the
 * memory away, and the slot is free again. place: the unit's value_slot or grad_slot. */
void td_slot_give(td_slot *slot, td_shard_unit *u, td_tensor *t, td_slot **place);
void td_slot_take(td_tensor *t, td_slot **place);

/* wire.c. Bytes of a rank's piece of u as the piece travels; 0: it travels as f32. */
int64_t td_shard_wire_bytes(const td_shard_unit *u);
/* Writes this rank's piece to slot->packed, and returns that as bytes, by value. */
td_tensor td_shard_pack(const td_shard_unit *u, const td_slot *slot);
/* Where all ranks' pieces arrive, as bytes, by value: at the end of slot->memory. */
td_tensor td_shard_packed_place(const td_shard_unit *u, const td_slot *slot);
/* Spreads the pieces that have arrived over slot->memory, as f32. */
void td_shard_unpack(const td_shard_unit *u, const td_slot *slot);

/* offload.c: zeroed memory of the CPU, or of a new file (place: "cpu", or a folder). NULL with
 * td_last_error(). */
td_tensor *td_offload_new(const char *place, int64_t count, td_dtype dtype);

/* values.c. Surrounds the model and its units: values are gathered, and dropped. */
td_status td_shard_surround(td_sharding *sh);
void td_shard_unsurround(td_sharding *sh);
void td_shard_let_all_go(td_sharding *sh);
/* Waits until all ranks have written their windows of woven values. */
void td_shard_meet(td_sharding *sh);
/* Waits until a gather has ended; after a failure, or with it, the values are zero. */
void td_shard_finish_gather(td_shard_unit *u);

/* grads.c: memory for a unit's gradients, in which a backward can begin; and the events of a step.
 */
void td_shard_begin_grads(td_shard_unit *u);
td_status td_shard_average(td_ddp_state *s, td_ddp_unit *unit, td_tensor *t);
void td_shard_keep_grads(td_shard_unit *u);
td_status td_shard_average_replicas(td_shard_unit *u, td_work **work);
void td_shard_drop_grads(td_shard_unit *u);
