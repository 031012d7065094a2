/* The shm engine: beginning and end. */
#include "dist/comm/engines/shm/shm.h"
#include "dist/comm/process.h"

#include "tensor/extend.h"
#include "tensor/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const double FIRST_SPIN = 20e-6; /* seconds; adapts later (wait.c) */
enum { FIRST_PATIENCE = 20 };           /* adapts later, too */

static size_t shm_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* The layout of the segment. */
static void shm_lay_out(td_shm *shm)
{
    const size_t n = (size_t)shm->size;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t ranks = sizeof(td_shm_segment) + n * sizeof(td_shm_rank);
    shm->slot_bytes = n <= 16 ? 32 << 10 : 8 << 10; /* there are n*n mailboxes */
    shm->boxes_at = shm_round_up(ranks, page);
    shm->box_bytes = shm_round_up(sizeof(td_shm_box) + TD_SHM_SLOTS * shm->slot_bytes, TD_SHM_LINE);
    shm->areas_at = shm_round_up(shm->boxes_at + n * n * shm->box_bytes, page);
    shm->bytes = shm->areas_at + 2 * n * TD_SHM_AREA_BYTES;
}

/* ---- meeting ---- */

/* Rank 0 makes the segment and tells the other ranks where it is. */
static td_status make_segment(td_shm *shm, td_store *store, int *fd)
{
    char text[64];
    void *memory;
    TD_TRY(td_shm_create("shm", shm->bytes, &memory, fd));
    shm->segment = memory;
    memcpy(shm->segment->magic, TD_SHM_MAGIC, sizeof(shm->segment->magic));
    shm->segment->bytes = shm->bytes;
    snprintf(text, sizeof text, "%d %d", (int)getpid(), *fd);
    return td_store_set_text(store, "segment", text);
}

static td_status find_segment(td_shm *shm, td_store *store, double timeout)
{
    char *text;
    void *memory;
    int pid = 0, fd = -1;
    TD_TRY(td_store_get_text(store, "segment", timeout, &text));
    (void)sscanf(text, "%d %d", &pid, &fd);
    free(text);
    td_status status = td_shm_map(pid, fd, shm->bytes, &memory);
    TD_CHECK(status != TD_E_PEER, status, "rank 0 (pid %d) has died, or runs in another container",
             pid);
    TD_TRY(status);
    shm->segment = memory;
    bool same = memcmp(shm->segment->magic, TD_SHM_MAGIC, sizeof(shm->segment->magic)) == 0 &&
                shm->segment->bytes == shm->bytes;
    return same ? TD_OK
                : td_fail(TD_E_MISMATCH, "rank 0's shared memory is laid out by another version of "
                                         "tandem; all ranks must run the same");
}

/* Each rank says that it has mapped the segment, and waits for all. */
static td_status shm_agree(const td_shm *shm, td_store *store, double deadline)
{
    char key[32], *text;
    snprintf(key, sizeof key, "mapped/%d", shm->rank);
    TD_TRY(td_store_set_text(store, key, "ok"));
    for (int r = 0; r < shm->size; r++) {
        snprintf(key, sizeof key, "mapped/%d", r);
        td_status status = td_store_get_text(store, key, td_seconds_until(deadline), &text);
        if (status != TD_OK) {
            return status == TD_E_TIMEOUT
                       ? td_fail_context(status, "shm: rank %d does not answer", r)
                       : status;
        }
        free(text);
    }
    return TD_OK;
}

static td_status shm_meet(td_shm *shm, const td_engine_init *init)
{
    double deadline = td_clock() + init->timeout;
    int fd = -1;
    td_status status = shm->rank == 0 ? make_segment(shm, init->store, &fd)
                                      : find_segment(shm, init->store, init->timeout);
    if (status == TD_OK) {
        td_shm_rank *self = td_shm_self(shm);
        self->pid = getpid();
        char state = td_process_state(self->pid, &self->start_time);
        if (state == 0 || state == TD_PROCESS_UNKNOWN) {
            status = td_fail(TD_E_UNSUPPORTED, "shm: /proc/self/stat cannot be read: is /proc "
                                               "mounted?");
        }
    }
    status = status == TD_OK ? shm_agree(shm, init->store, deadline) : status;
    td_close_fd(fd);
    return status;
}

/* ---- the engine ---- */

static void shm_destroy(void *engine)
{
    td_shm *shm = engine;
    td_shm_unmap_regions(shm);
    if (shm->segment != NULL) {
        atomic_store(&td_shm_self(shm)->gone, 1);
        munmap(shm->segment, shm->bytes);
    }
    free(shm);
}

static td_status shm_init(void **engine, const td_engine_init *init)
{
    TD_CHECK(init->size <= TD_SHM_MAX_RANKS, TD_E_UNSUPPORTED,
             "shm: %d ranks; it is made for up to %d: use gloo", init->size, TD_SHM_MAX_RANKS);
    td_shm *shm = calloc(1, sizeof *shm);
    TD_CHECK(shm != NULL, TD_E_NOMEM, "out of memory for a process group");
    shm->rank = init->rank;
    shm->size = init->size;
    shm->waiting.spin = FIRST_SPIN;
    shm->waiting.patience = FIRST_PATIENCE;
    shm_lay_out(shm);
    td_status status = shm_meet(shm, init);
    if (status != TD_OK) {
        shm_destroy(shm);
        return status;
    }
    *engine = shm;
    return TD_OK;
}

static uint64_t shm_moved(void *engine)
{
    return atomic_load(&((td_shm *)engine)->moved);
}

const td_engine_type td_shm_engine = {
    .name = "shm",
    .init = shm_init,
    .run = td_shm_run,
    .start = td_shm_start,
    .poll = td_shm_poll,
    .idle = td_shm_idle,
    .nudge = td_shm_nudge,
    .abort = td_shm_break,
    .entered = td_shm_last_entered,
    .look = td_shm_look,
    .moved = shm_moved,
    .memory = td_shm_memory,
    .memory_free = td_shm_memory_free,
    .weave = td_shm_weave,
    .destroy = shm_destroy,
};
