/* A store in a file: a log of requests, replayed by each process, under a lock.
 *
 *   header   8 bytes "TDFILE" 2 '\n' | u32 run id bytes, little-endian | run id
 *   record   a request (wire.h) that has set or deleted a key
 *
 * Locks on two bytes of the file, whatever stands there, end with their processes: who reads or
 * writes has the first alone; all who have the store open share the second, so that a process that
 * gets the second alone is the only user. */
#include "dist/comm/store.h"
#include "dist/comm/process.h"

#include "tensor/clock.h"
#include "dist/comm/store/table.h"
#include "dist/comm/store/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 6, MAGIC_BYTES = 8, HEADER_BYTES = 12, MAX_RUN_ID = 255 };
#define MAGIC "TDFILE\x02\n"

enum { TURN_BYTE, USERS_BYTE };

/* Seconds: between looks at the file; between calls of a request's `look`. */
static const double FIRST_PAUSE = 1e-3, LONGEST_PAUSE = 50e-3, LOOK_EVERY = 0.1;

typedef struct file_store {
    td_store store;
    char run_id[MAX_RUN_ID + 1];
    int fd;
    pthread_mutex_t lock; /* between threads; TURN_BYTE is between processes */
    td_table table;
    off_t position; /* how far the log has been replayed */
    char path[];
} file_store;

static td_status fail_file(const file_store *f, const char *what)
{
    return td_fail(TD_E_IO, "store file %s: cannot %s: %s", f->path, what, strerror(errno));
}

/* Takes (F_WRLCK: alone, F_RDLCK: with others) or gives up (F_UNLCK) a byte's lock, without
 * waiting. The lock is that of the open file, not of the process: two stores of one process are
 * apart. */
static bool set_lock(const file_store *f, int byte, short kind)
{
    struct flock lock = { .l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
    return fcntl(f->fd, F_OFD_SETLK, &lock) == 0;
}

/* Reads or writes all bytes. false: errno says why. */
static bool file_move(int fd, void *bytes, size_t size, off_t position, bool writes)
{
    for (char *at = bytes; size > 0;) {
        ssize_t moved = writes ? pwrite(fd, at, size, position) : pread(fd, at, size, position);
        if (moved < 0 && errno == EINTR) {
            continue;
        }
        if (moved <= 0) {
            errno = moved == 0 ? EIO : errno;
            return false;
        }
        at += moved;
        position += moved;
        size -= (size_t)moved;
    }
    return true;
}

static td_status read_at(const file_store *f, void *bytes, size_t size, off_t position)
{
    return file_move(f->fd, bytes, size, position, false) ? TD_OK : fail_file(f, "read");
}

static td_status write_at(const file_store *f, void *bytes, size_t size, off_t position)
{
    if (file_move(f->fd, bytes, size, position, true)) {
        return TD_OK;
    }
    td_status status = fail_file(f, "write");
    /* Removes the piece of a record. If that fails, the next writer removes it. */
    (void)!ftruncate(f->fd, position);
    return status;
}

/* ---- the log ---- */

/* Replays the whole records in these bytes. */
static td_status replay_bytes(file_store *f, const unsigned char *bytes, size_t size)
{
    while (size >= TD_WIRE_REQUEST_BYTES) {
        char key[TD_STORE_MAX_KEY + 1];
        td_store_request r;
        td_table_answer unused;
        size_t body;
        bool sane = td_wire_is_sane(bytes, &body);
        if (sane && TD_WIRE_REQUEST_BYTES + body > size) {
            break;
        }
        sane = sane && td_wire_unpack(bytes, bytes + TD_WIRE_REQUEST_BYTES, key, &r);
        td_status status = sane ? td_table_serve(&f->table, &r, &unused) : TD_E_FORMAT;
        if (status == TD_E_NOMEM) {
            return status;
        }
        TD_CHECK(status == TD_OK, TD_E_FORMAT,
                 "store file %s: broken at byte %lld; remove it and start again", f->path,
                 (long long)f->position);
        size_t record = TD_WIRE_REQUEST_BYTES + body;
        f->position += (off_t)record;
        bytes += record;
        size -= record;
    }
    return TD_OK;
}

/* Replays what is new in the file, up to its end. */
static td_status replay(file_store *f, off_t end)
{
    if (end <= f->position) {
        return TD_OK;
    }
    size_t size = (size_t)(end - f->position);
    unsigned char *bytes = malloc(size);
    TD_CHECK(bytes != NULL, TD_E_NOMEM, "store file %s: no memory for %zu bytes", f->path, size);
    td_status status = read_at(f, bytes, size, f->position);
    status = status == TD_OK ? replay_bytes(f, bytes, size) : status;
    free(bytes);
    /* A writer was killed inside a record: with the lock held no other process is writing. */
    if (status == TD_OK && f->position < end && ftruncate(f->fd, f->position) != 0) {
        status = fail_file(f, "cut");
    }
    return status;
}

/* Writes a request that the table has served already. If that fails, the table is read again. */
static td_status file_append(file_store *f, const td_store_request *r)
{
    size_t size;
    unsigned char *record = td_wire_pack(r, &size);
    td_status status =
        record != NULL
            ? write_at(f, record, size, f->position)
            : td_fail(TD_E_NOMEM, "store file %s: no memory for %zu bytes", f->path, size);
    free(record);
    f->position += (off_t)size;
    if (status != TD_OK) {
        td_table_clear(&f->table);
        f->position = (off_t)(HEADER_BYTES + strlen(f->run_id));
    }
    return status;
}

/* ---- the header ---- */

static td_status write_header(file_store *f)
{
    char header[HEADER_BYTES + MAX_RUN_ID] = MAGIC;
    size_t size = strlen(f->run_id);
    td_wire_put32((unsigned char *)header + MAGIC_BYTES, (uint32_t)size);
    memcpy(header + HEADER_BYTES, f->run_id, size);
    if (ftruncate(f->fd, 0) != 0) {
        return fail_file(f, "empty");
    }
    td_table_clear(&f->table);
    f->position = (off_t)(HEADER_BYTES + size);
    return write_at(f, header, HEADER_BYTES + size, 0);
}

/* *ours: the header has our run id. An empty file belongs to no run; one of another version, which
 * an earlier tandem left, to another run. */
static td_status read_header(const file_store *f, bool *ours, struct stat *info)
{
    unsigned char header[HEADER_BYTES];
    char run_id[MAX_RUN_ID + 1] = "";
    *ours = false;
    if (fstat(f->fd, info) != 0) {
        return fail_file(f, "look at");
    }
    if (info->st_size == 0) {
        return TD_OK;
    }
    uint32_t size = MAX_RUN_ID + 1;
    if (info->st_size >= HEADER_BYTES) {
        TD_TRY(read_at(f, header, sizeof(header), 0));
        size = memcmp(header, MAGIC, NAME_BYTES) == 0 ? td_wire_get32(header + MAGIC_BYTES) : size;
    }
    TD_CHECK(size <= MAX_RUN_ID && info->st_size >= HEADER_BYTES + (off_t)size, TD_E_FORMAT,
             "%s exists and is not a store's file; remove it or name another", f->path);
    TD_TRY(read_at(f, run_id, size, HEADER_BYTES));
    *ours = memcmp(header, MAGIC, MAGIC_BYTES) == 0 && strcmp(run_id, f->run_id) == 0;
    return TD_OK;
}

/* With the lock: uses the file as it is, or starts it again. */
static td_status file_enter(file_store *f)
{
    bool ours;
    struct stat info;
    TD_TRY(read_header(f, &ours, &info));
    f->position = (off_t)(HEADER_BYTES + strlen(f->run_id));
    bool stale = !ours || (f->run_id[0] == '\0' && set_lock(f, USERS_BYTE, F_WRLCK));
    TD_TRY(stale ? write_header(f) : replay(f, info.st_size));
    return set_lock(f, USERS_BYTE, F_RDLCK) ? TD_OK : fail_file(f, "lock");
}

/* ---- operations ---- */

/* Another process that holds the lock may be stopped: waits no longer than to the deadline. */
static td_status lock_file(file_store *f, double deadline)
{
    pthread_mutex_lock(&f->lock);
    while (!set_lock(f, TURN_BYTE, F_WRLCK)) {
        td_status status = TD_OK;
        if (errno != EINTR && errno != EAGAIN && errno != EACCES) {
            status = fail_file(f, "lock");
        } else if (td_clock() >= deadline) {
            status = td_fail(TD_E_TIMEOUT,
                             "store file %s: another process holds its lock and does not give it "
                             "up; end that process, or take another file",
                             f->path);
        }
        if (status != TD_OK) {
            pthread_mutex_unlock(&f->lock);
            return status;
        }
        td_sleep(FIRST_PAUSE);
    }
    return TD_OK;
}

static void unlock_file(file_store *f)
{
    (void)set_lock(f, TURN_BYTE, F_UNLCK);
    pthread_mutex_unlock(&f->lock);
}

/* Locks, and replays what other processes have written. */
static td_status file_begin(file_store *f, double deadline)
{
    struct stat info;
    bool ours = false;
    TD_TRY(lock_file(f, deadline));
    td_status status = read_header(f, &ours, &info);
    if (status == TD_OK && info.st_nlink == 0) {
        status = td_fail(TD_E_IO, "store file %s was removed while in use", f->path);
    } else if (status == TD_OK && (!ours || info.st_size < f->position)) {
        status = td_fail(TD_E_IO,
                         "store file %s was taken over by another run; give each run a file "
                         "of its own",
                         f->path);
    }
    status = status == TD_OK ? replay(f, info.st_size) : status;
    if (status != TD_OK) {
        unlock_file(f);
    }
    return status;
}

/* Answers a request. *reply NULL: a get of a key that does not exist yet. */
static td_status serve(file_store *f, const td_store_request *r, double deadline, char **reply,
                       size_t *size)
{
    td_table_answer answer;
    TD_TRY(file_begin(f, deadline));
    td_status status = td_table_serve(&f->table, r, &answer);
    *reply = NULL;
    if (status == TD_OK && !answer.waits) {
        *reply = td_bytes_copy(answer.value, answer.size);
        *size = answer.size;
        status = *reply != NULL
                     ? TD_OK
                     : td_fail(TD_E_NOMEM, "no memory for an answer of %zu bytes", answer.size);
    }
    if (answer.changed) {
        td_status written = file_append(f, r);
        status = status == TD_OK ? written : status;
    }
    if (status != TD_OK) {
        free(*reply);
    }
    unlock_file(f);
    return status;
}

static td_status file_call(td_store *store, const td_store_request *r, char **reply, size_t *size)
{
    file_store *f = (file_store *)store;
    double now = td_clock(), deadline = now + r->timeout, look = now + LOOK_EVERY;
    for (double pause = FIRST_PAUSE;;) {
        TD_TRY(serve(f, r, deadline, reply, size));
        if (*reply != NULL) {
            return TD_OK;
        }
        now = td_clock();
        TD_CHECK(now < deadline, TD_E_TIMEOUT,
                 "waited %.3g s for the key '%s' of the store file %s: nobody set it", r->timeout,
                 r->key, f->path);
        if (r->look != NULL && now >= look) {
            TD_TRY(r->look(r->user));
            look = now + LOOK_EVERY;
        }
        td_sleep(pause < deadline - now ? pause : deadline - now);
        pause = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
    }
}

static void file_close(td_store *store)
{
    file_store *f = (file_store *)store;
    td_close_fd(f->fd);
    pthread_mutex_destroy(&f->lock);
    td_table_clear(&f->table);
    free(f);
}

/* Opens a file that no other user can have written, and only this user may lock: what the file says
 * is believed, also which memory to map. */
static td_status open_own(file_store *f)
{
    struct stat info;
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (f->fd < 0 || fstat(f->fd, &info) != 0) {
        return fail_file(f, "open");
    }
    TD_CHECK(S_ISREG(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 022) == 0,
             TD_E_ARG,
             "store file %s: it must be a file of this user's that no other user may "
             "write; remove it, or take another",
             f->path);
    return TD_OK;
}

td_status td_file_store_open(const char *path, const char *run_id, double timeout, td_store **store)
{
    static const td_store_kind kind = { "file", file_call, file_close };
    TD_CHECK(run_id == NULL || strlen(run_id) <= MAX_RUN_ID, TD_E_ARG,
             "the run id has %zu bytes; %d are allowed", strlen(run_id), MAX_RUN_ID);
    file_store *f = calloc(1, sizeof(file_store) + strlen(path) + 1);
    TD_CHECK(f != NULL, TD_E_NOMEM, "no memory for a store");
    f->store = (td_store){ &kind, timeout > 0 ? timeout : 300 };
    strcpy(f->path, path);
    strcpy(f->run_id, run_id != NULL ? run_id : "");
    pthread_mutex_init(&f->lock, NULL);
    td_status status = open_own(f);
    status = status == TD_OK ? lock_file(f, td_clock() + f->store.timeout) : status;
    if (status == TD_OK) {
        status = file_enter(f);
        unlock_file(f);
    }
    if (status != TD_OK) {
        file_close(&f->store);
        return status;
    }
    *store = &f->store;
    return TD_OK;
}
