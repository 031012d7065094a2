/* A worker for the launcher's tests. Its arguments are done in order:
 *
 *   env            prints what the launcher told it
 *   meet           meets the other workers at the launcher's store, adds up ranks, and prints
 *   note:FOLDER    writes its pid to FOLDER/RANK.ATTEMPT
 *   child:FOLDER   starts a process of its own that sleeps, and writes its pid to FOLDER/child.RANK
 *   fail:RANK:CODE:TIMES    that rank complains and exits, in the first TIMES restarts
 *   signal:RANK:NUMBER      that rank is ended by a signal
 *   fatal:RANK     that rank calls td_fatal
 *   early:RANK     all meet over $TANDEM_BACKEND; that rank ends well, for which the others wait
 *   until:FILE     waits for a file, 60 s at most
 *   sleep:SECONDS  and, in any case, the end is well */
#include "tensor/clock.h"
#include "dist/comm/launch/error_file.h"
#include "dist/comm/rendezvous.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int env_number(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : -1;
}

static int rank;

static void print_environment(void)
{
    static const char *const names[] = {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "TANDEM_RESTART_COUNT",
        "TANDEM_MAX_RESTARTS",
        "TANDEM_ATTEMPT",
        "OMP_NUM_THREADS",
        "MASTER_ADDR",
        "TANDEM_RUN_ID",
    };
    char line[1024] = "env";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i]);
        snprintf(line + strlen(line), sizeof(line) - strlen(line), " %s=%s", names[i],
                 value != NULL ? value : "-");
    }
    puts(line);
}

static int meet(void)
{
    td_rendezvous_result r;
    int64_t sum = 0, count = 0;
    char *text = NULL;
    td_dist_options options = { .timeout = 60 };
    if (td_rendezvous(&options, &r) != TD_OK ||
        td_store_add(r.store, "sum", r.rank, &sum) != TD_OK ||
        td_store_add(r.store, "count", 1, &count) != TD_OK) {
        td_error_report(td_last_error());
        return 1;
    }
    if (count == r.world_size) {
        td_store_add(r.store, "sum", 0, &sum);
        td_store_set_text(r.store, "end", "1");
    }
    td_status status = td_store_get_text(r.store, "end", 60, &text);
    td_store_add(r.store, "sum", 0, &sum);
    printf("met rank=%d world=%d local=%d/%d sum=%d attempt=%d address=%s\n", r.rank, r.world_size,
           r.local_rank, r.local_world_size, (int)sum, env_number("TANDEM_ATTEMPT"), r.address);
    free(text);
    td_rendezvous_end(&r);
    return status != TD_OK;
}

static void write_pid(const char *folder, const char *name, int number, pid_t pid)
{
    char path[4096], partial[4200];
    snprintf(path, sizeof(path), "%s/%s%d", folder, name, number);
    snprintf(partial, sizeof(partial), "%s.partial", path);
    FILE *file = fopen(partial, "w");
    fprintf(file, "%ld\n", (long)pid);
    fclose(file);
    rename(partial, path);
}

static void start_child(const char *folder)
{
    pid_t pid = fork();
    if (pid == 0) {
        sleep(60);
        _exit(0);
    }
    write_pid(folder, "child.", rank, pid);
}

static void end_early(int who)
{
    if (td_dist_init(.backend = getenv("TANDEM_BACKEND"), .timeout = 60) != TD_OK ||
        (who != rank && td_barrier(NULL) != TD_OK)) {
        td_die();
    }
    exit(0);
}

static void do_action(const char *action)
{
    int who, what, times;
    double seconds;
    char name[64];
    if (strcmp(action, "env") == 0) {
        print_environment();
    } else if (strcmp(action, "meet") == 0) {
        if (meet() != 0) {
            exit(1);
        }
    } else if (strncmp(action, "note:", 5) == 0) {
        snprintf(name, sizeof(name), "%d.", rank);
        write_pid(action + 5, name, env_number("TANDEM_ATTEMPT"), getpid());
    } else if (strncmp(action, "child:", 6) == 0) {
        start_child(action + 6);
    } else if (sscanf(action, "fail:%d:%d:%d", &who, &what, &times) == 3) {
        if (who == rank && env_number("TANDEM_RESTART_COUNT") < times) {
            fprintf(stderr, "noise of rank %d\n", rank);
            td_error_report("the data of this rank are broken\nsecond line");
            exit(what);
        }
    } else if (sscanf(action, "signal:%d:%d", &who, &what) == 2) {
        if (who == rank) {
            signal(what, SIG_DFL); /* sanitizers catch some */
            raise(what);
        }
    } else if (sscanf(action, "fatal:%d", &who) == 1) {
        if (who == rank) {
            td_fatal(TD_HERE, "a tensor of shape [2, 3] where [3, 2] is wanted");
        }
    } else if (sscanf(action, "early:%d", &who) == 1) {
        end_early(who);
    } else if (strncmp(action, "until:", 6) == 0) {
        for (int i = 0; i < 6000 && access(action + 6, F_OK) != 0; i++) {
            td_sleep(0.01);
        }
    } else if (sscanf(action, "sleep:%lf", &seconds) == 1) {
        td_sleep(seconds);
    } else {
        fprintf(stderr, "unknown action %s\n", action);
        exit(64);
    }
}

int main(int argc, char **argv)
{
    rank = env_number("RANK");
    setvbuf(stdout, NULL, _IOLBF, 0);
    td_error_report_fatal();
    for (int i = 1; i < argc; i++) {
        do_action(argv[i]);
    }
    return 0;
}
