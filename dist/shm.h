/* The shm engine: collectives between processes of one host through shared memory. Inside view, for
 * the shm_*.c files.
 *
 * One segment holds, for every rank, what it has entered last, how far it is, and two staging areas
 * (turn and turn about, so that one can be filled while the other is still read), and a mailbox for
 * every ordered pair. Besides, each rank may have registered memory (td_group_memory) that all
 * others map: collectives on it need no staging.
 *
 * All of it is anonymous (memfd): it has no name that could be left behind, and does not count
 * against the size of /dev/shm. Peers open it through /proc/<pid>/fd. */
#ifndef TD_DIST_SHM_H
#define TD_DIST_SHM_H

#include "dist/backend.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    TD_SHM_MAX_RANKS = 64,
    TD_SHM_LINE = 128, /* bytes that only one rank writes at a time: two lines of cache, since
                          processors fetch them in pairs */
    TD_SHM_AREA_BYTES = 256 << 10,
    TD_SHM_EAGER_BYTES = 8 << 10, /* up to this, every rank reduces all by itself */
    TD_SHM_SLOTS = 2,             /* messages under way in a mailbox */
    TD_SHM_REASON_BYTES = 1024,
    TD_SHM_MAX_REGIONS = 1024,
};

/* What a rank has entered; one cache line. */
typedef struct td_shm_entry {
    alignas(64) _Atomic uint64_t turn; /* counts the engine's collectives; written last */
    uint64_t number;                   /* td_collective.number */
    int64_t count;
    uint64_t place; /* the data's offset in registered memory */
    int32_t region; /* -1: it is not registered */
    int32_t peer;
    uint8_t kind, dtype, op;
} td_shm_entry;

typedef struct td_shm_rank {
    alignas(TD_SHM_LINE) td_shm_entry entry[2]; /* by turn & 1: the last one may still be read */
    alignas(TD_SHM_LINE) _Atomic uint64_t step; /* counts barriers inside collectives */
    alignas(TD_SHM_LINE) _Atomic uint32_t bell; /* rung when a mailbox of this rank changes */
    _Atomic uint32_t bell_waiters;
    alignas(TD_SHM_LINE) _Atomic uint32_t gone; /* has left in good order */
    _Atomic uint32_t core;                      /* where it last ran when it began to wait */
    pid_t pid;
    uint64_t start_time; /* of the process, so that a reused pid is not taken for it */
} td_shm_rank;

typedef struct td_shm_slot {
    int64_t count; /* of the whole message */
    uint64_t number;
    uint32_t dtype;
    uint32_t bytes; /* of this piece */
} td_shm_slot;

/* From one rank to another; the data of the slots follows. */
typedef struct td_shm_box {
    alignas(TD_SHM_LINE) _Atomic uint64_t filled; /* by the sender */
    alignas(TD_SHM_LINE) _Atomic uint64_t taken;  /* by the receiver */
    alignas(TD_SHM_LINE) td_shm_slot slot[TD_SHM_SLOTS];
} td_shm_box;

typedef enum td_shm_broken { TD_SHM_WHOLE, TD_SHM_BREAKING, TD_SHM_BROKEN } td_shm_broken;

typedef struct td_shm_segment {
    alignas(TD_SHM_LINE) _Atomic uint32_t broken; /* td_shm_broken */
    td_status status;
    char reason[TD_SHM_REASON_BYTES];
    alignas(TD_SHM_LINE) _Atomic uint32_t door; /* where those sleep who wait for others */
    alignas(TD_SHM_LINE) _Atomic uint32_t sleepers;
    td_shm_rank rank[];
} td_shm_segment;

/* Registered memory: every rank's part of one td_group_memory call. Its index in the list is the
 * same on all ranks. A rank that has freed its own part keeps the others', which they may still
 * use, until all have freed theirs; the ranks tell each other at the next td_group_memory. */
typedef struct td_shm_region {
    size_t bytes;                 /* 0: this place in the list is free */
    char *base[TD_SHM_MAX_RANKS]; /* in this process's address space; NULL: freed */
} td_shm_region;

/* A send or receive under way; kept in a list and used again. */
typedef struct td_shm_request {
    struct td_shm_request *next;
    const td_collective *c;
    uint64_t ticket; /* its turn among the messages of that pair and direction */
    int64_t moved;   /* bytes */
    bool begun;
} td_shm_request;

typedef struct td_shm {
    int rank, size;
    td_shm_segment *segment;
    size_t bytes; /* of the segment */
    size_t boxes_at, box_bytes, slot_bytes, areas_at;
    uint64_t turn;      /* collectives entered */
    uint64_t step;      /* barriers inside them */
    int parity;         /* of the staging areas: which is used next */
    double spin;        /* seconds of spinning before sleeping */
    int crowded;        /* waits in a row for a rank on this very core */
    int patience;       /* so many of them, and this rank moves */
    double checked;     /* when the peers of messages were last looked at */
    uint32_t bell_seen; /* the bell's value before the last look at the mailboxes */
    td_shm_region *regions;
    int region_count;
    td_shm_request *free_requests;
    uint64_t tickets[TD_SHM_MAX_RANKS][2]; /* given out: sends to, receives from each rank */
    uint64_t served[TD_SHM_MAX_RANKS][2];
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

/* ---- shm_wait.c ---- */

/* Breaks the group for all: the first reason stays. */
void td_shm_break(td_shm *shm, td_status status, const char *reason);
/* Fails if the group is broken. */
td_status td_shm_check(const td_shm *shm);
/* Fails, and breaks the group, if a rank has died or left. */
td_status td_shm_check_peer(td_shm *shm, int rank);
/* See td_comm_backend.look. */
td_status td_shm_look(void *engine);
/* Enters a collective: tells the others what it is, waits until all have entered, and compares.
 * region, place: where its data is registered, or -1. */
td_status td_shm_enter(td_shm *shm, const td_collective *c, int32_t region, uint64_t place);
/* What a rank has entered in this turn; after td_shm_enter, until the next. */
const td_shm_entry *td_shm_entered_by(const td_shm *shm, int rank);
/* A barrier inside a collective. */
td_status td_shm_step(td_shm *shm, const td_collective *c);
/* Rings a rank's bell: its mailboxes have changed. */
void td_shm_ring(td_shm *shm, int rank);
/* See td_comm_backend. */
void td_shm_idle(void *engine, double seconds, bool background);
bool td_shm_last_entered(void *engine, int rank, td_entered *entered);

/* ---- shm_process.c ---- */

/* The state letter of a process ('T': stopped) and when it started; 0: there is none, or only its
 * remains. */
char td_process_state(pid_t pid, uint64_t *start_time);

/* ---- shm_memory.c ---- */

/* Zeroed shared memory that is really there, mapped; *fd is for others to open. what: for
 * messages. */
td_status td_shm_create(const char *what, size_t bytes, void **memory, int *fd);
/* Maps what another process has created. */
td_status td_shm_map(pid_t pid, int fd, size_t bytes, void **memory);
td_status td_shm_memory(void *engine, const td_collective *c, void **memory);
void td_shm_memory_free(void *engine, void *memory);
/* The index of the registered memory of this rank that holds all of these bytes, or -1. */
int td_shm_find_region(const td_shm *shm, const void *data, size_t bytes);
/* Unmaps everything that is registered. */
void td_shm_unmap_regions(td_shm *shm);

/* ---- shm_collectives.c, shm_messages.c ---- */

td_status td_shm_run(void *engine, const td_collective *c);
td_status td_shm_start(void *engine, const td_collective *c, void **request);
td_status td_shm_poll(void *engine, void *request, bool *done);
void td_shm_nudge(void *engine);

#endif
