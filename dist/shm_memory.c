/* The shm engine: where its memory comes from, and registered memory. */
#include "dist/shm.h"

#include "tensor/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- creating and mapping ---- */

/* A number from a file, after a prefix: "MemAvailable: 123 kB". otherwise: it is not there. */
static size_t read_number(const char *path, const char *prefix, size_t otherwise)
{
    char line[128];
    FILE *file = fopen(path, "re");
    size_t number = otherwise;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long long value;
        size_t length = strlen(prefix);
        if (strncmp(line, prefix, length) == 0 && sscanf(line + length, "%llu", &value) == 1) {
            number = (size_t)value;
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return number;
}

/* What the machine or the container has left. Taking more means being killed without a word, since
 * anonymous shared memory has no limit of its own. */
static size_t memory_left(void)
{
    size_t left = read_number("/proc/meminfo", "MemAvailable:", SIZE_MAX / 1024) * 1024;
    size_t limit = read_number("/sys/fs/cgroup/memory.max", "", SIZE_MAX);
    size_t used = read_number("/sys/fs/cgroup/memory.current", "", 0);
    size_t group = used < limit ? limit - used : 0;
    return group < left ? group : left;
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
    if (bytes > left) {
        return td_fail(TD_E_NOMEM,
                       "%s: %s of shared memory are wanted, %s are left: close other "
                       "programs, or use fewer ranks or a smaller model",
                       what, td_describe_bytes(bytes), td_describe_bytes(left));
    }
    *fd = memfd_create("tandem", MFD_CLOEXEC);
    if (*fd < 0) {
        return td_fail(TD_E_IO, "%s: no shared memory: memfd_create: %s", what, strerror(errno));
    }
    /* Really takes the memory now: later a lack of it would be a SIGBUS. */
    int error = ftruncate(*fd, (off_t)bytes) != 0 ? errno : posix_fallocate(*fd, 0, (off_t)bytes);
    td_status status = TD_OK;
    if (error != 0) {
        status = td_fail(TD_E_NOMEM, "%s: %s of shared memory could not be had: %s", what,
                         td_describe_bytes(bytes), strerror(error));
    }
    if (status == TD_OK) {
        status = map(what, *fd, bytes, memory);
    }
    if (status != TD_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

td_status td_shm_map(pid_t pid, int fd, size_t bytes, void **memory)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    *memory = NULL;
    int mine = open(path, O_RDWR | O_CLOEXEC);
    if (mine < 0) {
        return td_fail(TD_E_IO,
                       "the shared memory of pid %d cannot be opened (%s: %s): all ranks of a host "
                       "must be the same user's, and in one container",
                       (int)pid, path, strerror(errno));
    }
    td_status status = map(path, mine, bytes, memory);
    close(mine);
    return status;
}

/* ---- registered memory ---- */

const td_shm_region *td_shm_find_region(const td_shm *shm, const void *data, size_t bytes)
{
    for (int i = 0; i < shm->region_count; i++) {
        const td_shm_region *region = &shm->regions[i];
        const char *base = region->base[shm->rank], *begin = data;
        if (begin >= base && begin + bytes <= base + region->bytes) {
            return region;
        }
    }
    return NULL;
}

const td_shm_region *td_shm_region_of(const td_shm *shm, int32_t id)
{
    for (int i = 0; i < shm->region_count; i++) {
        if (shm->regions[i].id == id) {
            return &shm->regions[i];
        }
    }
    return NULL;
}

static void unmap_region(const td_shm *shm, const td_shm_region *region)
{
    for (int r = 0; r < shm->size; r++) {
        if (region->base[r] != NULL) {
            munmap(region->base[r], region->bytes);
        }
    }
}

/* What a rank tells the others about its part. */
typedef struct offer {
    int64_t ok;
    int64_t fd;
    char error[256];
} offer;

/* Every rank's offer to every rank. */
static td_status exchange_offers(td_shm *shm, const td_collective *c, const offer *mine, offer *all)
{
    td_collective gather = *c;
    gather.kind = TD_COLLECTIVE_ALL_GATHER;
    gather.dtype = TD_U8;
    gather.in = mine;
    gather.out = all;
    gather.count = (int64_t)sizeof *mine;
    TD_TRY(td_shm_run(shm, &gather));
    for (int r = 0; r < shm->size; r++) {
        if (!all[r].ok) {
            return td_fail(TD_E_NOMEM, "rank %d: %s", r, all[r].error);
        }
    }
    return TD_OK;
}

static void note_failure(offer *mine)
{
    mine->ok = 0;
    snprintf(mine->error, sizeof mine->error, "%s", td_last_error());
}

/* Makes this rank's part and maps the others'. If one of them fails, all do. */
static td_status share(td_shm *shm, const td_collective *c, td_shm_region *region)
{
    offer mine = { .ok = 1, .fd = -1 }, all[TD_SHM_MAX_RANKS];
    void *memory;
    int fd = -1;
    if (td_shm_create("td_group_memory", region->bytes, &memory, &fd) != TD_OK) {
        note_failure(&mine);
    }
    mine.fd = fd;
    region->base[shm->rank] = memory;
    td_status status = exchange_offers(shm, c, &mine, all);
    if (status == TD_OK) {
        for (int r = 0; r < shm->size && mine.ok; r++) {
            pid_t pid = shm->segment->rank[r].pid;
            if (r != shm->rank) {
                if (td_shm_map(pid, (int)all[r].fd, region->bytes, &memory) != TD_OK) {
                    note_failure(&mine);
                }
                region->base[r] = memory;
            }
        }
        status = exchange_offers(shm, c, &mine, all); /* also: all have opened it */
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/* Room for one more in the list. */
static td_status grow_list(td_shm *shm)
{
    if (shm->region_count < shm->region_capacity) {
        return TD_OK;
    }
    int capacity = shm->region_capacity == 0 ? 16 : 2 * shm->region_capacity;
    td_shm_region *larger = realloc(shm->regions, (size_t)capacity * sizeof *larger);
    if (larger == NULL) {
        td_fail(TD_E_NOMEM, "out of memory for a list of registered memory");
        td_shm_break(shm, TD_E_PEER, td_last_error());
        return TD_E_PEER; /* the others do not know: this breaks the group */
    }
    shm->regions = larger;
    shm->region_capacity = capacity;
    return TD_OK;
}

td_status td_shm_memory(void *engine, const td_collective *c, void **memory)
{
    td_shm *shm = engine;
    TD_TRY(grow_list(shm));
    TD_TRY(td_shm_enter(shm, c, -1, 0));
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = ((size_t)(c->count > 0 ? c->count : 1) + page - 1) / page * page;
    td_shm_region region = { .id = shm->next_region++, .bytes = bytes };
    td_status status = share(shm, c, &region);
    if (status != TD_OK) {
        unmap_region(shm, &region);
        return status;
    }
    shm->regions[shm->region_count++] = region;
    *memory = region.base[shm->rank];
    return TD_OK;
}

void td_shm_memory_free(void *engine, void *memory)
{
    td_shm *shm = engine;
    for (int i = 0; i < shm->region_count; i++) {
        if (shm->regions[i].base[shm->rank] == memory) {
            unmap_region(shm, &shm->regions[i]);
            shm->regions[i] = shm->regions[--shm->region_count];
            return;
        }
    }
}
