/* Runs several ranks as processes, with a limit on their time. */
#include "tests/help/dist_procs.h"

#include "tensor/clock.h"
#include "dist/comm/store/net.h"
#include "dist/comm/rendezvous.h"
#include "tests/help/sanitized.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Of the present run; shared with the ranks. */
static struct {
    char store[256];
    int runs;
    bool over_tcp;
    int port;
    struct shared {
        _Atomic pid_t pids[PROCS_MAX];
        _Atomic int arrived;
    } * shared;
} now;

static char folder[128];
static pid_t parent;

/* How many ranks mpirun has started, of which this process is one; 0: it has not. */
static int mpi_ranks(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_SIZE");
    return text != NULL ? atoi(text) : 0;
}

bool procs_would_run(int size)
{
    return mpi_ranks() == 0 || mpi_ranks() == size;
}

/* Under mpirun: this process is a rank, if the world has the right size. A test does not see what
 * becomes of it; if it fails, it ends, and mpirun the others. */
static void be_mpi_rank(int size, procs_fn fn, void *arg)
{
    bool now_or_never = procs_would_run(size);
    print_message("# procs: %d ranks %s\n", size, now_or_never ? "run" : "are not in this run");
    if (now_or_never && fn(atoi(getenv("OMPI_COMM_WORLD_RANK")), size, arg) != 0) {
        fprintf(stderr, "a rank has failed: %s\n", td_last_error());
        fflush(NULL);
        _exit(99);
    }
}

static void remove_folder(void)
{
    if (getpid() == parent) {
        char command[192];
        snprintf(command, sizeof command, "rm -rf '%s'", folder);
        if (system(command) != 0) {
            fprintf(stderr, "%s could not be removed\n", folder);
        }
    }
}

static void prepare(void)
{
    if (now.shared == NULL) {
        const char *base = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/tandem-dist-XXXXXX", base != NULL ? base : "/tmp");
        assert_non_null(mkdtemp(folder));
        now.shared = mmap(NULL, sizeof *now.shared, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(now.shared != MAP_FAILED);
        parent = getpid();
        atexit(remove_folder);
        prctl(PR_SET_CHILD_SUBREAPER, 1); /* for procs_assert_nothing_left */
    }
    if (TD_SANITIZED) {
        /* A thread that has just begun may hold the lock of ASan's allocator, and a child that is
         * forked at that moment would wait for it for ever. */
        td_sleep(0.05);
    }
    now.port = now.over_tcp ? td_free_port() : 0;
    snprintf(now.store, sizeof now.store, "%s/store%d", folder, now.runs++);
    for (int r = 0; r < PROCS_MAX; r++) {
        now.shared->pids[r] = 0;
    }
    now.shared->arrived = 0;
}

static _Noreturn void be_rank(int rank, int size, procs_fn fn, void *arg, int output)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    static const int caught[] = { SIGSEGV, SIGILL, SIGFPE, SIGBUS, SIGABRT, SIGSYS };
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
        signal(caught[i], SIG_DFL); /* cmocka's handlers would go on with the parent's tests */
    }
    dup2(output, STDERR_FILENO);
    setvbuf(stderr, NULL, _IONBF, 0);
    now.shared->pids[rank] = getpid();
    exit(fn(rank, size, arg));
}

static void read_output(int fd, procs_end *end)
{
    ssize_t length = pread(fd, end->output, sizeof end->output - 1, 0);
    end->output[length > 0 ? length : 0] = '\0';
    close(fd);
}

/* Whether one more has ended. */
static bool reap(int size, const pid_t *pids, double begin, procs_end *ends)
{
    for (int r = 0; r < size; r++) {
        int status;
        if (ends[r].seconds == 0 && waitpid(pids[r], &status, WNOHANG) == pids[r]) {
            ends[r].seconds = td_clock() - begin;
            ends[r].code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            ends[r].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
            return true;
        }
    }
    return false;
}

void procs_run(int size, double limit, procs_fn fn, void *arg, procs_end *ends)
{
    pid_t pids[PROCS_MAX];
    int outputs[PROCS_MAX];
    assert_true(size <= PROCS_MAX);
    if (mpi_ranks() > 0) {
        print_message("# procs: looks at how ranks end, which mpirun does not tell\n");
        skip();
    }
    prepare();
    memset(ends, 0, (size_t)size * sizeof *ends);
    fflush(NULL);
    double begin = td_clock(), scale = TD_SANITIZED ? 5 : 1;
    for (int r = 0; r < size; r++) {
        outputs[r] = open(folder, O_TMPFILE | O_RDWR | O_APPEND, 0600);
        assert_true(outputs[r] >= 0);
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            be_rank(r, size, fn, arg, outputs[r]);
        }
    }
    bool killed = false;
    for (int left = size; left > 0;) {
        if (reap(size, pids, begin, ends)) {
            left--;
            continue;
        }
        if (!killed && td_clock() - begin > limit * scale) {
            for (int r = 0; r < size; r++) {
                if (ends[r].seconds == 0) {
                    kill(pids[r], SIGKILL);
                }
            }
            killed = true;
        }
        td_sleep(0.002);
    }
    for (int r = 0; r < size; r++) {
        read_output(outputs[r], &ends[r]);
    }
    if (killed) {
        for (int r = 0; r < size; r++) {
            print_message("rank %d: code %d, signal %d: %s\n", r, ends[r].code, ends[r].signal,
                          ends[r].output);
        }
        fail_msg("the ranks took longer than %.1f s", limit * scale);
    }
}

void procs_succeed(int size, double limit, procs_fn fn, void *arg)
{
    static procs_end ends[PROCS_MAX];
    if (mpi_ranks() > 0) {
        be_mpi_rank(size, fn, arg);
        return;
    }
    procs_run(size, limit, fn, arg, ends);
    bool good = true;
    for (int r = 0; r < size; r++) {
        if (ends[r].code != 0) {
            print_message("rank %d: code %d, signal %d: %s\n", r, ends[r].code, ends[r].signal,
                          ends[r].output);
            good = false;
        }
    }
    assert_true(good);
}

/* Where the ranks of this run meet. */
static void fill_in(int rank, int size, td_dist_options *options)
{
    static char url[300];
    if (now.port > 0) {
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", now.port);
    } else {
        snprintf(url, sizeof url, "file://%s", now.store);
    }
    options->init_method = url;
    options->rank = rank;
    options->world_size = size;
}

td_status procs_try_init(int rank, int size, td_dist_options *options)
{
    if (mpi_ranks() == 0) {
        fill_in(rank, size, options);
    }
    return td_dist_init_at(*options, TD_HERE);
}

void procs_meet_and_die(int rank, int size)
{
    td_dist_options options = { .timeout = 20 };
    td_rendezvous_result met;
    fill_in(rank, size, &options);
    REQUIRE_OK(td_rendezvous(&options, &met));
    raise(SIGKILL);
    _exit(1);
}

void procs_init(int rank, int size, double timeout)
{
    REQUIRE_OK(procs_try_init(rank, size, &(td_dist_options){ .timeout = timeout }));
}

void procs_meet_over_tcp(bool over_tcp)
{
    now.over_tcp = over_tcp;
}

bool procs_are_over(const char *backend)
{
    const char *text = getenv("TANDEM_BACKEND");
    return strcmp(text != NULL ? text : "shm", backend) == 0;
}

/* Whether one of this program's processes listens there. Another test, which runs at the same time,
 * may have been given the port since; its process group is another, as run.sh starts it. */
static bool port_is_ours(int port, char *holder, size_t size)
{
    long pid;
    return td_port_holder(port, holder, size) && sscanf(holder, "pid %ld", &pid) == 1 &&
           getpgid((pid_t)pid) == getpgrp();
}

/* Other tests' folders may lie in /dev/shm, too, and what a killed run of the emulated NCCL left.
 */
static bool is_another_tests(const char *name)
{
    static const char *const begins[] = { "tandem-test-", "tandem-dist-", "tandem-nccl-" };
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) {
            return true;
        }
    }
    return false;
}

void procs_assert_nothing_left(void)
{
    int status;
    pid_t orphan = waitpid(-1, &status, WNOHANG);
    if (orphan >= 0 || errno != ECHILD) {
        fail_msg("a process of the ranks has outlived them (%d)", (int)orphan);
    }
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, "tandem", strlen("tandem")) == 0 &&
            !is_another_tests(entry->d_name)) {
            fail_msg("/dev/shm/%s is left", entry->d_name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    char holder[128];
    if (now.port > 0 && port_is_ours(now.port, holder, sizeof holder)) {
        fail_msg("port %d, where the ranks have met, is still in use: %s", now.port, holder);
    }
}

pid_t procs_pid(int rank)
{
    while (now.shared->pids[rank] == 0) {
        td_sleep(0.001);
    }
    return now.shared->pids[rank];
}

void procs_arrive(void)
{
    now.shared->arrived++;
}

void procs_await(int count)
{
    static const double PATIENCE = 120;
    double begin = td_clock();
    while (now.shared->arrived < count) {
        REQUIRE(td_clock() - begin < PATIENCE);
        td_sleep(0.001);
    }
}

void procs_await_stopped(int rank)
{
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)procs_pid(rank));
    while (state != 'T') {
        FILE *file = fopen(path, "r");
        REQUIRE(file != NULL);
        (void)!fscanf(file, "%*d (%*[^)]) %c", &state);
        fclose(file);
        td_sleep(0.001);
    }
}

void procs_require(bool holds, const char *condition, const char *file, int line)
{
    if (!holds) {
        fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", file, line, condition,
                td_last_error());
        fflush(NULL);
        _exit(99);
    }
}

void procs_assert_says(const procs_end *ends, int rank, const char *text)
{
    if (strstr(ends[rank].output, text) == NULL) {
        fail_msg("rank %d (code %d, signal %d) does not say '%s', but: %s", rank, ends[rank].code,
                 ends[rank].signal, text, ends[rank].output);
    }
}
