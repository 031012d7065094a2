/* The shm engine: collectives between processes of one host through shared memory. Internal
 * header of this folder.
 *
 * One shared segment has for each rank: the collective that it has entered last, its position
 * inside that collective, and two staging areas, which are used alternately (one is filled while
 * the other is still read). The segment also has a mailbox for each ordered pair of ranks. Each
 * rank may also have registered memory (td_group_memory), which all other ranks map. Collectives on
 * registered memory need no staging.
 *
 * All shared memory is anonymous (memfd). So no name can be left behind, and the memory does not
 * count against the size of /dev/shm. Peers open it through /proc/<pid>/fd. */
#pragma once

#include "dist/comm/engine.h"
#include "dist/comm/process.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    TD_SHM_MAX_RANKS = 64,
    TD_SHM_LINE = 128, /* alignment of what one rank writes: two cache lines, because processors
                          fetch lines in pairs */
    TD_SHM_AREA_BYTES = 256 << 10,
    TD_SHM_EAGER_BYTES = 8 << 10, /* up to this size each rank reduces the whole array */
    TD_SHM_SLOTS = 2,             /* pieces of messages in a mailbox */
    TD_SHM_REASON_BYTES = 1024,
    TD_SHM_MAX_REGIONS = 1024,
};

/* The collective that a rank has entered; one cache line. */
typedef struct td_shm_entry {
    alignas(64) _Atomic uint64_t turn; /* counts the engine's collectives; written last */
    td_entered what;
    uint64_t place; /* the data's offset in the region */
    int32_t region; /* index of the registered memory; -1: the data is not registered */
} td_shm_entry;

/* What has become of a rank's part of new registered memory. */
typedef struct td_shm_offer {
    int32_t fd;
    char error[256]; /* "": nothing has failed */
} td_shm_offer;

typedef struct td_shm_rank {
    alignas(TD_SHM_LINE) td_shm_entry entry[2]; /* by turn & 1: others may still read the last */
    alignas(TD_SHM_LINE) _Atomic uint64_t step; /* counts barriers inside collectives */
    alignas(TD_SHM_LINE) _Atomic uint32_t bell; /* rung when a mailbox of this rank changes */
    _Atomic uint32_t bell_waiters;
    alignas(TD_SHM_LINE) _Atomic uint32_t gone; /* the rank has left the group */
    _Atomic uint32_t core;                      /* the core on which it last began to wait */
    pid_t pid;
    uint64_t start_time; /* of the process: a reused pid has another one */
    td_shm_offer offer[2];
} td_shm_rank;

typedef struct td_shm_slot {
    td_entered what; /* the whole message */
    uint32_t bytes;  /* of this piece */
} td_shm_slot;

/* A mailbox from one rank to another. The slots' data follows it in memory. */
typedef struct td_shm_box {
    alignas(TD_SHM_LINE) _Atomic uint64_t filled; /* by the sender */
    alignas(TD_SHM_LINE) _Atomic uint64_t taken;  /* by the receiver */
    alignas(TD_SHM_LINE) td_shm_slot slot[TD_SHM_SLOTS];
} td_shm_box;

typedef enum td_shm_broken { TD_SHM_WHOLE, TD_SHM_BREAKING, TD_SHM_BROKEN } td_shm_broken;

#define TD_SHM_MAGIC "tdshm\2\0" /* 8 bytes; the \2 is the layout's version */

typedef struct td_shm_segment {
    char magic[8];
    uint64_t bytes;                               /* of the whole segment */
    alignas(TD_SHM_LINE) _Atomic uint32_t broken; /* td_shm_broken */
    td_status status;
    char reason[TD_SHM_REASON_BYTES];
    alignas(TD_SHM_LINE) _Atomic uint32_t door; /* the futex on which waiting ranks sleep */
    alignas(TD_SHM_LINE) _Atomic uint32_t sleepers;
    /* By region: the ranks that have not freed their parts. 0: the region's place is free. */
    _Atomic uint32_t users[TD_SHM_MAX_REGIONS];
    td_shm_rank rank[];
} td_shm_segment;

/* Registered memory: all ranks' parts of one td_group_memory call. The region's index in the list
 * is the same on all ranks. A rank that has freed its own part still maps the others' parts until
 * all ranks have freed theirs: until the next td_group_memory after that. */
typedef struct td_shm_region {
    size_t bytes;
    char *base[TD_SHM_MAX_RANKS]; /* in this process's address space; NULL: freed */
    char *woven;                  /* all parts in one range (td_shm_weave); NULL: not asked for */
} td_shm_region;

/* A running send or receive. */
typedef struct td_shm_request {
    const td_collective *c;
    uint64_t ticket; /* the message's number in its mailbox */
    int64_t moved;   /* bytes */
    bool begun;
} td_shm_request;

/* How this rank waits for others. */
typedef struct td_shm_waiting {
    double spin;  /* seconds of spinning before sleeping */
    int crowded;  /* how many waits in a row were for a lower rank on this core */
    int patience; /* after this many such waits this rank moves to another core */
} td_shm_waiting;

typedef struct td_shm {
    int rank, size;
    td_shm_segment *segment;
    size_t bytes; /* of the segment */
    size_t boxes_at, box_bytes, slot_bytes, areas_at;
    uint64_t turn; /* collectives entered */
    uint64_t step; /* barriers inside them */
    int parity;    /* which of the two staging areas is used next */
    td_shm_waiting waiting;
    double checked;     /* when the peers of messages were last checked */
    uint32_t bell_seen; /* the bell's value before the last look at the mailboxes */
    td_shm_region regions[TD_SHM_MAX_REGIONS];
    int region_count;                      /* places that have been used */
    uint64_t tickets[TD_SHM_MAX_RANKS][2]; /* tickets given out: sends to, receives from a rank */
    uint64_t served[TD_SHM_MAX_RANKS][2];
    atomic_uint_fast64_t moved; /* bytes of data that were read from other ranks' memory (areas,
                                   mailboxes, registered memory), or written into it */
} td_shm;

static inline td_shm_rank *td_shm_self(const td_shm *shm)
{
    return &shm->segment->rank[shm->rank];
}

static inline char *td_shm_area(const td_shm *shm, int parity, int rank)
{
    return (char *)shm->segment + shm->areas_at +
           (size_t)(parity * shm->size + rank) * TD_SHM_AREA_BYTES;
}

/* ---- wait.c ---- */

/* Breaks the group on all ranks. The first reason stays. */
void td_shm_break(void *engine, td_status status, const char *reason);
/* Fails if the group is broken. */
td_status td_shm_check(const td_shm *shm);
/* Fails, and breaks the group, if a rank has died or left. */
td_status td_shm_check_peer(td_shm *shm, int rank);
/* See td_engine_type.look. */
td_status td_shm_look(void *engine);
/* Enters a collective: publishes it, waits until all ranks have entered, and fails if they have
 * entered different collectives. region, place: where the data is registered; region -1: nowhere.
 */
td_status td_shm_enter(td_shm *shm, const td_collective *c, int32_t region, uint64_t place);
/* What a rank has entered in this turn. Valid from td_shm_enter until the next one. */
const td_shm_entry *td_shm_entered_by(const td_shm *shm, int rank);
/* A barrier inside a collective. */
td_status td_shm_step(td_shm *shm, const td_collective *c);
/* Wakes a rank because one of its mailboxes has changed. */
void td_shm_ring(td_shm *shm, int rank);
/* See td_engine_type. */
void td_shm_idle(void *engine, double seconds, bool background);
bool td_shm_last_entered(void *engine, int rank, td_entered *entered, char note[TD_NOTE_BYTES]);

/* ---- memory.c ---- */

/* Maps zeroed shared memory, which is allocated at once. *fd: for other processes to open. what:
 * for messages. */
td_status td_shm_create(const char *what, size_t bytes, void **memory, int *fd);
/* Maps memory that another process has created by td_shm_create, with this size. Whatever else lies
 * behind the descriptor, a file for example, is refused. */
td_status td_shm_map(pid_t pid, int fd, size_t bytes, void **memory);
td_status td_shm_memory(void *engine, const td_collective *c, void **memory);
void td_shm_memory_free(void *engine, void *memory);
td_status td_shm_weave(void *engine, void *memory, const int64_t *cuts, int pieces, size_t width,
                       void **woven);
/* The index of this rank's registered memory in which all of these bytes lie, or -1. */
int td_shm_find_region(const td_shm *shm, const void *data, size_t bytes);
/* Unmaps all registered memory. */
void td_shm_unmap_regions(td_shm *shm);

/* ---- collectives.c, messages.c ---- */

td_status td_shm_run(void *engine, const td_collective *c);
td_status td_shm_start(void *engine, const td_collective *c, void **request);
td_status td_shm_poll(void *engine, void *request, bool *done);
void td_shm_nudge(void *engine);
