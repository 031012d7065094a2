/* The shm engine: waiting for other ranks, and noticing that they will not come.
 *
 * A rank arrives by writing a number into its own word, which the other ranks read. A rank
 * continues when it sees that all words have reached the number. A waiting rank spins for a moment
 * and then sleeps on a futex, the door. The last rank to arrive sees that it is the last, and wakes
 * the sleepers. A sleeper also wakes up every SLICE seconds. Then it checks whether the group is
 * broken (the watchdog breaks it at a deadline), and whether the missing ranks still live. */
#include "dist/comm/engines/shm/shm.h"

#include "tensor/clock.h"
#include "dist/comm/watchdog.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

static const double SLICE = 0.05; /* seconds; a peer's death is noticed within this time */

static inline void relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, double seconds)
{
    struct timespec t = { .tv_nsec = (long)(seconds * 1e9) };
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- breaking ---- */

void td_shm_break(void *engine, td_status status, const char *reason)
{
    td_shm *shm = engine;
    td_shm_segment *s = shm->segment;
    uint32_t whole = TD_SHM_WHOLE;
    if (atomic_compare_exchange_strong(&s->broken, &whole, TD_SHM_BREAKING)) {
        s->status = status;
        snprintf(s->reason, sizeof s->reason, "%s", reason);
        atomic_store(&s->broken, TD_SHM_BROKEN);
    }
    atomic_fetch_add(&s->door, 1);
    futex_wake_all(&s->door);
    for (int r = 0; r < shm->size; r++) {
        td_shm_ring(shm, r);
    }
}

td_status td_shm_check(const td_shm *shm)
{
    enum { PATIENCE = 1000 };
    td_shm_segment *s = shm->segment;
    if (atomic_load(&s->broken) == TD_SHM_WHOLE) {
        return TD_OK;
    }
    /* The reason is being written, unless its writer has just died. */
    for (int i = 0; i < PATIENCE && atomic_load(&s->broken) == TD_SHM_BREAKING; i++) {
        sched_yield();
    }
    TD_CHECK(atomic_load(&s->broken) == TD_SHM_BROKEN, TD_E_PEER,
             "another rank has broken the group");
    return td_fail(s->status, "%s", s->reason);
}

td_status td_shm_check_peer(td_shm *shm, int rank)
{
    const td_shm_rank *peer = &shm->segment->rank[rank];
    uint64_t start = peer->start_time;
    if (atomic_load(&peer->gone)) {
        td_fail(TD_E_PEER, "rank %d (pid %d) has left the group", rank, (int)peer->pid);
    } else if (td_process_state(peer->pid, &start) == 0 || start != peer->start_time) {
        td_fail(TD_E_PEER, "rank %d (pid %d) has died, or has ended before the others", rank,
                (int)peer->pid);
    } else {
        return TD_OK;
    }
    td_shm_break(shm, TD_E_PEER, td_last_error());
    return td_shm_check(shm);
}

td_status td_shm_look(void *engine)
{
    td_shm *shm = engine;
    td_status status = td_shm_check(shm);
    for (int r = 0; r < shm->size && status == TD_OK; r++) {
        if (r != shm->rank && !atomic_load(&shm->segment->rank[r].gone)) {
            status = td_shm_check_peer(shm, r);
        }
    }
    return status;
}

/* ---- arriving and waiting ---- */

/* Rank r's word; offset: in td_shm_rank. */
static inline _Atomic uint64_t *word_of(const td_shm *shm, int rank, size_t offset)
{
    return (_Atomic uint64_t *)(void *)((char *)&shm->segment->rank[rank] + offset);
}

static bool all_arrived(const td_shm *shm, size_t offset, uint64_t target)
{
    for (int r = 0; r < shm->size; r++) {
        if (atomic_load(word_of(shm, r, offset)) < target) {
            return false;
        }
    }
    return true;
}

/* Checks between two sleeps: fails if waiting longer is useless. */
static td_status shm_look_around(td_shm *shm, size_t offset, uint64_t target)
{
    TD_TRY(td_shm_check(shm));
    for (int r = 0; r < shm->size; r++) {
        if (atomic_load(word_of(shm, r, offset)) < target && r != shm->rank) {
            TD_TRY(td_shm_check_peer(shm, r));
        }
    }
    return TD_OK;
}

static td_status sleep_until_all(td_shm *shm, size_t offset, uint64_t target)
{
    td_shm_segment *s = shm->segment;
    td_status status = TD_OK;
    double looked = td_clock();
    atomic_fetch_add(&s->sleepers, 1);
    while (status == TD_OK) {
        uint32_t door = atomic_load(&s->door);
        if (all_arrived(shm, offset, target)) {
            break;
        }
        double now = td_clock();
        if (now - looked >= SLICE || atomic_load(&s->broken) != TD_SHM_WHOLE) {
            status = shm_look_around(shm, offset, target);
            looked = now;
        } else {
            futex_wait(&s->door, door, SLICE);
        }
    }
    atomic_fetch_sub(&s->sleepers, 1);
    return status;
}

/* The first missing rank that ran on this core when it last began to wait; -1: none did. */
static int find_crowding(td_shm *shm, size_t offset, uint64_t target)
{
    int core = sched_getcpu();
    uint32_t here = core >= 0 ? (uint32_t)core : UINT32_MAX;
    td_shm_rank *ranks = shm->segment->rank;
    atomic_store_explicit(&ranks[shm->rank].core, here, memory_order_relaxed);
    for (int r = 0; r < shm->size && here != UINT32_MAX; r++) {
        if (r != shm->rank && atomic_load(word_of(shm, r, offset)) < target &&
            atomic_load_explicit(&ranks[r].core, memory_order_relaxed) == here) {
            return r;
        }
    }
    return -1;
}

/* If two ranks share a core and each yields to the other in every wait, the scheduler sees no
 * reason to separate them, and every barrier costs two process switches. So, if there are cores for
 * all ranks, the higher of the two ranks moves to another core; if both did, they would meet there
 * again. After each move it waits longer before the next, because the other cores may be busy with
 * other programs. */
static void leave_core(td_shm *shm)
{
    enum { MOST_PATIENCE = 1 << 20 };
    td_shm_waiting *w = &shm->waiting;
    cpu_set_t allowed, others;
    int core = sched_getcpu();
    w->crowded = 0;
    w->patience = w->patience < MOST_PATIENCE ? 2 * w->patience : MOST_PATIENCE;
    if (core < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
        CPU_COUNT(&allowed) < shm->size) {
        return;
    }
    others = allowed;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) {
        (void)sched_setaffinity(0, sizeof allowed, &allowed); /* all cores are allowed, as before */
    }
}

/* Spins until all have arrived, at most shm->waiting.spin seconds. That time doubles after a
 * success and halves after a failure. */
static bool spin_until_all(td_shm *shm, size_t offset, uint64_t target)
{
    td_shm_waiting *w = &shm->waiting;
    enum { GLANCES = 32 }; /* between two looks at the clock */
    static const double SHORTEST = 8e-6, LONGEST = 50e-6;
    double now, end = 0;
    int other = find_crowding(shm, offset, target);
    if (other >= 0) {
        w->crowded += other < shm->rank;
        if (w->crowded >= w->patience) {
            leave_core(shm);
        }
        sched_yield();
    } else {
        w->crowded = 0;
    }
    do {
        for (int i = 0; i < GLANCES; i++) {
            if (all_arrived(shm, offset, target)) {
                w->spin = w->spin * 2 < LONGEST ? w->spin * 2 : LONGEST;
                return true;
            }
            relax();
        }
        sched_yield(); /* a missing rank may need this core */
        now = td_clock();
        end = end == 0 ? now + w->spin : end;
    } while (now < end);
    w->spin = w->spin / 2 > SHORTEST ? w->spin / 2 : SHORTEST;
    return false;
}

/* Writes target into this rank's word and waits until all words have reached it. */
static td_status arrive(td_shm *shm, size_t offset, uint64_t target, const td_collective *c)
{
    td_shm_segment *s = shm->segment;
    atomic_store(word_of(shm, shm->rank, offset), target);
    if (all_arrived(shm, offset, target)) {
        if (atomic_load(&s->sleepers) > 0) {
            atomic_fetch_add(&s->door, 1);
            futex_wake_all(&s->door);
        }
        return TD_OK;
    }
    if (!c->background && spin_until_all(shm, offset, target)) {
        return TD_OK;
    }
    return sleep_until_all(shm, offset, target);
}

td_status td_shm_step(td_shm *shm, const td_collective *c)
{
    return arrive(shm, offsetof(td_shm_rank, step), ++shm->step, c);
}

/* ---- entering ---- */

const td_shm_entry *td_shm_entered_by(const td_shm *shm, int rank)
{
    return &shm->segment->rank[rank].entry[shm->turn & 1];
}

/* After all ranks have entered: fails if they have entered different collectives. All ranks compare
 * the same entries and come to the same result. */
static td_status compare_entries(td_shm *shm)
{
    const td_entered *mine = &td_shm_entered_by(shm, shm->rank)->what;
    bool same = true;
    for (int r = 0; r < shm->size; r++) {
        same = same && td_entered_match(mine, &td_shm_entered_by(shm, r)->what);
    }
    if (same) {
        return TD_OK;
    }
    td_entered entered[TD_SHM_MAX_RANKS];
    for (int r = 0; r < shm->size; r++) {
        entered[r] = td_shm_entered_by(shm, r)->what;
    }
    td_status status = td_compare_entered(entered, shm->size);
    td_shm_break(shm, status, td_last_error());
    return status;
}

td_status td_shm_enter(td_shm *shm, const td_collective *c, int32_t region, uint64_t place)
{
    TD_TRY(td_shm_check(shm));
    uint64_t turn = ++shm->turn;
    td_shm_entry *entry = &td_shm_self(shm)->entry[turn & 1];
    atomic_store_explicit(&entry->turn, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    entry->what = td_entered_of(c);
    entry->region = region;
    entry->place = place;
    size_t offset = offsetof(td_shm_rank, entry) + (turn & 1) * sizeof(td_shm_entry);
    TD_TRY(arrive(shm, offset, turn, c));
    return compare_entries(shm);
}

bool td_shm_last_entered(void *engine, int rank, td_entered *entered, char note[TD_NOTE_BYTES])
{
    td_shm *shm = engine;
    td_shm_rank *peer = &shm->segment->rank[rank];
    *entered = (td_entered){ .number = 0 };
    uint64_t latest = 0;
    for (int e = 0; e < 2; e++) {
        /* The rank may be writing this entry: take it only if its turn has not changed meanwhile.
         */
        uint64_t turn = atomic_load(&peer->entry[e].turn);
        td_entered seen = peer->entry[e].what;
        atomic_thread_fence(memory_order_acquire);
        if (turn > latest && atomic_load(&peer->entry[e].turn) == turn) {
            latest = turn;
            *entered = seen;
        }
    }
    td_process_note(peer->pid, note, TD_NOTE_BYTES);
    return true;
}

/* ---- bells: for messages between two ranks ---- */

void td_shm_ring(td_shm *shm, int rank)
{
    td_shm_rank *peer = &shm->segment->rank[rank];
    atomic_fetch_add(&peer->bell, 1);
    if (atomic_load(&peer->bell_waiters) > 0) {
        futex_wake_all(&peer->bell);
    }
}

void td_shm_idle(void *engine, double seconds, bool background)
{
    td_shm *shm = engine;
    td_shm_rank *self = td_shm_self(shm);
    double end = td_clock() + (background ? 0 : shm->waiting.spin);
    while (atomic_load(&self->bell) == shm->bell_seen && td_clock() < end) {
        relax();
    }
    if (atomic_load(&self->bell) == shm->bell_seen) {
        atomic_fetch_add(&self->bell_waiters, 1);
        futex_wait(&self->bell, shm->bell_seen, seconds < SLICE ? seconds : SLICE);
        atomic_fetch_sub(&self->bell_waiters, 1);
    }
    shm->bell_seen = atomic_load(&self->bell);
}
