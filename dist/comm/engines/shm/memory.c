/* The shm engine: where its memory comes from, and registered memory. */
#include "dist/comm/engines/shm/shm.h"

#include "dist/comm/process.h"
#include "tensor/clock.h"
#include "tensor/system/container.h"
#include "tensor/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- creating and mapping ---- */

/* Bytes that the machine or the container has left, including cached files, which it can drop.
 * Anonymous shared memory has no limit of its own: a process that takes more is killed without a
 * message. */
static size_t memory_left(void)
{
    char line[128];
    size_t left = SIZE_MAX, group = td_container_memory_now().left;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && left == SIZE_MAX && fgets(line, sizeof line, file) != NULL) {
        unsigned long long kib;
        left = sscanf(line, "MemAvailable: %llu", &kib) == 1 ? (size_t)kib * 1024 : left;
    }
    if (file != NULL) {
        fclose(file);
    }
    return group < left ? group : left;
}

#define MEMORY_NAME "tandem"
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Whether a path's link leads to memory that td_shm_create has made: the name of a file cannot
 * begin so. It is asked before the path is opened, because opening a device may act. */
static bool is_tandem_memory(const char *path)
{
    static const char name[] = "/memfd:" MEMORY_NAME;
    char target[64];
    ssize_t length = readlink(path, target, sizeof target);
    return length >= (ssize_t)sizeof name - 1 && memcmp(target, name, sizeof name - 1) == 0;
}

/* Nobody can change its size, and so a write cannot be a SIGBUS. */
static bool is_sealed(int fd, size_t bytes)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &info) == 0 &&
           (size_t)info.st_size == bytes;
}

static td_status map(const char *what, int fd, size_t bytes, void **memory)
{
    *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (*memory == MAP_FAILED) {
        *memory = NULL;
        return td_fail(TD_E_NOMEM, "%s: %s of shared memory could not be mapped: %s", what,
                       td_describe_bytes(bytes), strerror(errno));
    }
    return TD_OK;
}

td_status td_shm_create(const char *what, size_t bytes, void **memory, int *fd)
{
    *memory = NULL;
    size_t left = memory_left();
    TD_CHECK(bytes <= left, TD_E_NOMEM,
             "%s: %s of shared memory are wanted, %s are left: close other "
             "programs, or use fewer ranks or a smaller model",
             what, td_describe_bytes(bytes), td_describe_bytes(left));
    *fd = memfd_create(MEMORY_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    TD_CHECK(*fd >= 0, TD_E_IO, "%s: no shared memory: memfd_create: %s", what, strerror(errno));
    /* Allocates the memory now: a lack of memory later would be a SIGBUS. */
    int error = ftruncate(*fd, (off_t)bytes) != 0 ? errno : posix_fallocate(*fd, 0, (off_t)bytes);
    /* Nor may its size change: other processes check the seals. */
    error = error == 0 && fcntl(*fd, F_ADD_SEALS, SEALS) != 0 ? errno : error;
    td_status status = TD_OK;
    if (error != 0) {
        status = td_fail(TD_E_NOMEM, "%s: %s of shared memory could not be had: %s", what,
                         td_describe_bytes(bytes), strerror(error));
    }
    status = status == TD_OK ? map(what, *fd, bytes, memory) : status;
    if (status != TD_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

/* The files of a process that is dying go a moment before it does. */
static bool has_ended(pid_t pid)
{
    enum { TRIES = 20 };
    uint64_t start;
    for (int i = 0; i < TRIES && td_process_state(pid, &start) != 0; i++) {
        td_sleep(0.01);
    }
    return td_process_state(pid, &start) == 0;
}

td_status td_shm_map(pid_t pid, int fd, size_t bytes, void **memory)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    *memory = NULL;
    bool known = is_tandem_memory(path);
    int mine = known ? open(path, O_RDWR | O_CLOEXEC) : -1;
    int error = errno;
    if (mine >= 0 && !is_sealed(mine, bytes)) {
        close(mine);
        known = false;
    }
    TD_CHECK(known || access(path, F_OK) != 0, TD_E_MISMATCH,
             "%s is no shared memory of %zu bytes made by this version of tandem; do all "
             "ranks run the same program?",
             path, bytes);
    TD_CHECK(mine >= 0 || !has_ended(pid), TD_E_PEER,
             "the process that made %s (pid %d) has died, or runs in another container", path,
             (int)pid);
    TD_CHECK(mine >= 0, TD_E_IO,
             "the shared memory of pid %d cannot be opened (%s: %s): all ranks of a host "
             "must be the same user's, and in one container",
             (int)pid, path, strerror(error));
    td_status status = map(path, mine, bytes, memory);
    close(mine);
    return status;
}

/* ---- registered memory ---- */

int td_shm_find_region(const td_shm *shm, const void *data, size_t bytes)
{
    const char *begin = data;
    for (int i = 0; i < shm->region_count; i++) {
        const char *base = shm->regions[i].base[shm->rank];
        if (base != NULL && begin >= base && begin + bytes <= base + shm->regions[i].bytes) {
            return i;
        }
    }
    return -1;
}

/* Unmaps the parts of the ranks from `first` to `last`, and what they are woven into. */
static void unmap_parts(const td_shm *shm, td_shm_region *region, int first, int last)
{
    if (region->woven != NULL) {
        munmap(region->woven, region->bytes * (size_t)shm->size);
        region->woven = NULL;
    }
    for (int r = first; r <= last; r++) {
        if (region->base[r] != NULL) {
            munmap(region->base[r], region->bytes);
            region->base[r] = NULL;
        }
    }
}

void td_shm_unmap_regions(td_shm *shm)
{
    for (int i = 0; i < shm->region_count; i++) {
        unmap_parts(shm, &shm->regions[i], 0, shm->size - 1);
    }
}

void td_shm_memory_free(void *engine, void *memory)
{
    td_shm *shm = engine;
    int i = td_shm_find_region(shm, memory, 1);
    if (i >= 0) {
        unmap_parts(shm, &shm->regions[i], shm->rank, shm->rank);
        atomic_fetch_sub(&shm->segment->users[i], 1);
    }
}

/* Maps the pages of a shared mapping once more, elsewhere (mremap of length 0). */
static bool map_again(char *from, size_t bytes, char *to)
{
    return bytes == 0 || mremap(from, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == (void *)to;
}

td_status td_shm_weave(void *engine, void *memory, const int64_t *cuts, int pieces, size_t width,
                       void **woven)
{
    td_shm *shm = engine;
    int found = td_shm_find_region(shm, memory, 1);
    TD_CHECK(found >= 0 && shm->regions[found].woven == NULL, TD_E_ARG,
             "td_group_weave: memory that %s",
             found < 0 ? "is not of td_group_memory" : "is woven already");
    td_shm_region *region = &shm->regions[found];
    size_t ranks = (size_t)shm->size, all = region->bytes * ranks;
    char *range = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool mapped = range != MAP_FAILED;
    for (int k = 0; mapped && k < pieces; k++) {
        size_t begin = (size_t)cuts[k] * width, bytes = (size_t)cuts[k + 1] * width - begin;
        bytes /= ranks;
        for (size_t r = 0; mapped && r < ranks; r++) {
            mapped = map_again(region->base[r] + begin / ranks, bytes, range + begin + r * bytes);
        }
    }
    if (!mapped) {
        int error = errno;
        if (range != MAP_FAILED) {
            munmap(range, all);
        }
        return td_fail(TD_E_NOMEM,
                       "%d x %zu mappings of %s of shared memory could not be made: %s; raise "
                       "vm.max_map_count (sysctl), or let td_ddp gather: .gathers",
                       pieces, ranks, td_describe_bytes(all), strerror(error));
    }
    region->woven = range;
    *woven = range;
    return TD_OK;
}

/* Unmaps the regions that no rank uses any more. Returns the first free place in the list;
 * negative: the list is full. All ranks find the same, because no part is freed inside of a
 * collective. */
static int free_place(td_shm *shm)
{
    int place = -1;
    for (int i = TD_SHM_MAX_REGIONS - 1; i >= 0; i--) {
        if (atomic_load(&shm->segment->users[i]) == 0) {
            place = i;
            if (i < shm->region_count) {
                unmap_parts(shm, &shm->regions[i], 0, shm->size - 1);
            }
        }
    }
    return place;
}

/* A barrier that fails on all ranks if a step has failed on one of them. The offers of two steps
 * that follow each other are different ones: others may still read the last. */
static td_status memory_agree(td_shm *shm, const td_collective *c, int step, int fd, td_status mine)
{
    td_shm_offer *offer = &td_shm_self(shm)->offer[step];
    offer->fd = fd;
    snprintf(offer->error, sizeof offer->error, "%s", mine != TD_OK ? td_last_error() : "");
    TD_TRY(td_shm_step(shm, c));
    for (int r = 0; r < shm->size; r++) {
        offer = &shm->segment->rank[r].offer[step];
        TD_CHECK(offer->error[0] == '\0', TD_E_NOMEM, "rank %d: %s", r, offer->error);
    }
    return TD_OK;
}

static td_status map_parts(td_shm *shm, td_shm_region *region)
{
    for (int r = 0; r < shm->size; r++) {
        const td_shm_rank *peer = &shm->segment->rank[r];
        if (r != shm->rank) {
            void *memory;
            td_status status = td_shm_map(peer->pid, peer->offer[0].fd, region->bytes, &memory);
            if (status == TD_E_PEER) { /* the same container: its segment is mapped */
                TD_TRY(td_shm_check_peer(shm, r));
            }
            TD_TRY(status);
            region->base[r] = memory;
        }
    }
    return TD_OK;
}

/* Makes this rank's part and maps the others' parts. */
td_status td_shm_memory(void *engine, const td_collective *c, void **memory)
{
    td_shm *shm = engine;
    TD_TRY(td_shm_enter(shm, c, -1, 0));
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)(c->count > 0 ? c->count : 1);
    int fd = -1, place = free_place(shm);
    TD_CHECK(place >= 0, TD_E_NOMEM, "td_group_memory: %d of these at a time are the most",
             TD_SHM_MAX_REGIONS);
    td_shm_region *region = &shm->regions[place];
    region->bytes = (bytes + page - 1) / page * page;
    shm->region_count = place < shm->region_count ? shm->region_count : place + 1;
    td_status status = td_shm_create("td_group_memory", region->bytes, memory, &fd);
    region->base[shm->rank] = *memory;
    status = memory_agree(shm, c, 0, fd, status);
    if (status == TD_OK) {
        status =
            memory_agree(shm, c, 1, -1, map_parts(shm, region)); /* now all ranks have opened it */
    }
    td_close_fd(fd);
    if (status == TD_OK) {
        atomic_fetch_add(&shm->segment->users[place], 1);
    } else {
        unmap_parts(shm, region, 0, shm->size - 1);
    }
    return status;
}
