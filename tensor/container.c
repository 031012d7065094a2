/* Reads the limits of this process's control groups. */
#include "tensor/container.h"

#include <stdint.h>
#include <stdio.h>
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

static void look_at(const char *folder, const file_names *names, td_container_memory *least)
{
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

/* The group and those above it, up to the root. In a container the paths may be the host's and not
 * exist here: the root is the container's then. */
static void look_upwards(const char *root, const char *group, const file_names *names,
                         td_container_memory *least)
{
    char folder[PATH_BYTES];
    size_t end = strlen(root);
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", root, group) >= sizeof folder) {
        return;
    }
    for (char *slash; (slash = strrchr(folder, '/')) != NULL && slash >= folder + end;
         *slash = '\0') {
        if (slash[1] != '\0') {
            look_at(folder, names, least);
        }
    }
    look_at(root, names, least);
}

td_container_memory td_container_memory_of(const char *groups, const char *root)
{
    td_container_memory least = { SIZE_MAX, SIZE_MAX };
    char line[PATH_BYTES], root1[PATH_BYTES];
    snprintf(root1, sizeof root1, "%s/memory", root);
    FILE *file = fopen(groups, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0'; /* "4:memory:/path" or "0::/path" */
        char *kinds = strchr(line, ':'), *group = kinds != NULL ? strchr(kinds + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        if (kinds[1] == '\0') {
            look_upwards(root, group, &version2, &least);
        } else if (strstr(kinds, "memory") != NULL) {
            look_upwards(root1, group, &version1, &least);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return least;
}

td_container_memory td_container_memory_now(void)
{
    return td_container_memory_of("/proc/self/cgroup", "/sys/fs/cgroup");
}
