/* Reads the limits of this process's control groups. */
#include "tensor/system/container.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* A group's files, by version. */
typedef struct file_names {
    const char *limit, *used, *inactive, *active; /* the last two: lines of memory.stat */
} file_names;
static const file_names version1 = { "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file ", "total_active_file " };
static const file_names version2 = { "memory.max", "memory.current", "inactive_file ",
                                     "active_file " };

/* The number after a prefix at a line's beginning; `otherwise` if there is none ("max"). */
static size_t read_number(const char *folder, const char *name, const char *prefix,
                          size_t otherwise)
{
    char path[PATH_BYTES + 64], line[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    size_t number = otherwise, length = strlen(prefix);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long long value;
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

static void look_at_memory(const char *folder, bool second, void *result)
{
    td_container_memory *least = result;
    const file_names *names = second ? &version2 : &version1;
    enum { NO_LIMIT_SHIFT = 60 }; /* version 1 says "no limit" by a number near 2^63 */
    size_t limit = read_number(folder, names->limit, "", SIZE_MAX);
    if (limit >> NO_LIMIT_SHIFT != 0) {
        return;
    }
    size_t used = read_number(folder, names->used, "", 0);
    size_t files = read_number(folder, "memory.stat", names->inactive, 0) +
                   read_number(folder, "memory.stat", names->active, 0);
    used = files < used ? used - files : 0;
    size_t left = used < limit ? limit - used : 0;
    least->limit = limit < least->limit ? limit : least->limit;
    least->left = left < least->left ? left : least->left;
}

/* A quota of time in each period: "-1" or "max" where there is none. */
static void look_at_cpus(const char *folder, bool second, void *result)
{
    int *least = result;
    char path[PATH_BYTES + 64];
    char text[64] = "", *end;
    snprintf(path, sizeof path, "%s/%s", folder, second ? "cpu.max" : "cpu.cfs_quota_us");
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    (void)!fgets(text, sizeof text, file);
    fclose(file);
    long long quota = strtoll(text, &end, 10), period = strtoll(end, NULL, 10); /* "max": 0 */
    if (!second) {
        period = (long long)read_number(folder, "cpu.cfs_period_us", "", 0);
    }
    double cpus =
        period > 0 && quota > 0 ? fmax(1.0, floor((double)quota / (double)period)) : INT_MAX;
    *least = cpus < *least ? (int)cpus : *least;
}

typedef void (*group_look)(const char *folder, bool second, void *result);

/* The group and those above it, up to the root. In a container the paths may be the host's and not
 * exist here: the root is the container's then. */
static void look_upwards(const char *root, const char *group, bool second, group_look look,
                         void *result)
{
    char folder[PATH_BYTES];
    size_t end = strlen(root);
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", root, group) >= sizeof folder) {
        return;
    }
    for (char *slash; (slash = strrchr(folder, '/')) != NULL && slash >= folder + end;
         *slash = '\0') {
        if (slash[1] != '\0') {
            look(folder, second, result);
        }
    }
    look(root, second, result);
}

/* Whether "cpu,cpuacct" has "cpu". */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

/* Looks at all groups of this process that have to do with a controller ("memory", "cpu"). The
 * second version's hierarchy may have a place next to the first one's. */
static void look_at_groups(const char *groups, const char *root, const char *controller,
                           group_look look, void *result)
{
    char line[PATH_BYTES], root1[PATH_BYTES], both[PATH_BYTES];
    snprintf(root1, sizeof root1, "%s/%s", root, controller);
    snprintf(both, sizeof both, "%s/unified", root);
    FILE *file = fopen(groups, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0'; /* "4:memory:/path" or "0::/path" */
        char *kinds = strchr(line, ':'), *group = kinds != NULL ? strchr(kinds + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        if (*++kinds == '\0') {
            look_upwards(root, group, true, look, result);
            look_upwards(both, group, true, look, result);
        } else if (has_word(kinds, controller)) {
            look_upwards(root1, group, false, look, result);
            snprintf(root1, sizeof root1, "%s/%s", root, kinds); /* without its short name */
            look_upwards(root1, group, false, look, result);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

td_container_memory td_container_memory_of(const char *groups, const char *root)
{
    td_container_memory least = { SIZE_MAX, SIZE_MAX };
    look_at_groups(groups, root, "memory", look_at_memory, &least);
    return least;
}

int td_container_cpus_of(const char *groups, const char *root)
{
    int least = INT_MAX;
    look_at_groups(groups, root, "cpu", look_at_cpus, &least);
    return least;
}

#define OWN_GROUPS "/proc/self/cgroup"
#define ALL_GROUPS "/sys/fs/cgroup"

td_container_memory td_container_memory_now(void)
{
    return td_container_memory_of(OWN_GROUPS, ALL_GROUPS);
}

int td_container_cpus_now(void)
{
    return td_container_cpus_of(OWN_GROUPS, ALL_GROUPS);
}
