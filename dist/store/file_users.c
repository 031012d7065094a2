#include "dist/store/file_users.h"

#include "dist/process.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HOST_BYTES = 128 };
#define USER_PREFIX "\x01user/"

static void get_host(char host[HOST_BYTES])
{
    memset(host, 0, HOST_BYTES);
    gethostname(host, HOST_BYTES - 1);
}

/* When a process began; 0 if that cannot be seen. Tells a process from a later one with the same
 * id. */
static uint64_t start_time(pid_t pid)
{
    uint64_t start = 0;
    (void)td_process_state(pid, &start);
    return start;
}

static bool is_user_alive(const char *key, const char *host)
{
    size_t length = strlen(host);
    key += strlen(USER_PREFIX);
    if (strncmp(key, host, length) != 0 || key[length] != '/') {
        return true; /* on another host: cannot be seen */
    }
    long pid;
    unsigned long long ticks;
    return sscanf(key + length, "/%ld/%llu", &pid, &ticks) == 2 &&
           (kill((pid_t)pid, 0) == 0 || errno != ESRCH) && start_time((pid_t)pid) == ticks;
}

void td_file_user_key(char *key, size_t size)
{
    static atomic_int number; /* tells the stores of one process apart */
    char host[HOST_BYTES];
    get_host(host);
    snprintf(key, size, USER_PREFIX "%s/%ld/%llu/%d", host, (long)getpid(),
             (unsigned long long)start_time(getpid()), atomic_fetch_add(&number, 1));
}

bool td_file_users_alive(const td_table *table)
{
    char host[HOST_BYTES];
    get_host(host);
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (const td_table_entry *e = table->buckets[i]; e != NULL; e = e->next) {
            if (strncmp(e->key, USER_PREFIX, strlen(USER_PREFIX)) == 0 &&
                is_user_alive(e->key, host)) {
                return true;
            }
        }
    }
    return false;
}
