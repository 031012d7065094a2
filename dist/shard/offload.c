/* td_zero's .offload: where this rank's windows of values, gradients and optimizer state lie.
 *
 * "cpu", of a model on a GPU: in the host's memory. The optimizer runs on the CPU; a gather begins
 * with a copy to the GPU, and an average ends with a copy back. So a model may be larger than the
 * GPU's memory: what must be there at a time are the slots of units.
 *
 * A folder: in files. The system writes their pages to disk, and takes the memory back, when memory
 * is short; a page comes back when it is used. So a model may be larger than the host's memory. */
#include "dist/shard/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Unmaps a file's memory when its last tensor is freed. */
typedef struct mapping {
    td_lender lender; /* first */
    size_t bytes;
} mapping;

static void unmap(td_lender *lender, void *data)
{
    munmap(data, ((mapping *)(void *)lender)->bytes);
    free(lender);
}

static td_status refuse(const char *what, const char *folder, size_t bytes, int error)
{
    const char *hint = error == ENOENT   ? "; create the folder first"
                       : error == ENOSPC ? "; free some space, or give a folder on another disk"
                                         : "";
    return td_fail(TD_E_IO, "td_zero: .offload '%s': cannot %s %s: %s%s", folder, what,
                   td_describe_bytes(bytes), strerror(error), hint);
}

/* Memory of a new file of zeros, whose space is taken already, without a name: it goes with its
 * last user, also if that is killed. */
static td_status map_file(const char *folder, size_t bytes, void **data)
{
    char path[4096];
    bool fits = snprintf(path, sizeof path, "%s/tandem-XXXXXX", folder) < (int)sizeof path;
    int fd = fits ? mkstemp(path) : -1;
    if (fd < 0) {
        return refuse("make a file of", folder, bytes, fits ? errno : ENAMETOOLONG);
    }
    unlink(path);
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    bool room = error == 0;
    *data = room ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    error = room ? errno : error;
    close(fd); /* the mapping keeps the file */
    return *data != MAP_FAILED ? TD_OK : refuse(room ? "map" : "have", folder, bytes, error);
}

static td_tensor *new_mapping(const char *folder, int64_t count, td_dtype dtype)
{
    mapping *m = malloc(sizeof *m);
    size_t bytes = (size_t)(count > 0 ? count : 1) * td_dtype_size(dtype);
    void *data;
    td_status status = m != NULL ? map_file(folder, bytes, &data)
                                 : td_fail(TD_E_NOMEM, "td_ddp: no memory for a mapping");
    if (status != TD_OK) {
        free(m);
        return NULL;
    }
    *m = (mapping){ { unmap }, bytes };
    td_tensor *t = td_new_away(TD_SHAPE(count), dtype, TD_ROW_MAJOR, TD_CPU, &m->lender);
    if (t == NULL) {
        unmap(&m->lender, data);
        return NULL;
    }
    td_set_address(t, data);
    return t;
}

td_tensor *td_offload_new(const char *place, int64_t count, td_dtype dtype)
{
    return strcmp(place, "cpu") == 0 ? td_zeros(TD_SHAPE(count), dtype, TD_CPU)
                                     : new_mapping(place, count, dtype);
}
