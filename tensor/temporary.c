#include "tensor/temporary.h"

#include "tensor/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* FNV-1a. */
uint32_t td_host_number(void)
{
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) != 0) {
        name[0] = '\0';
    }
    uint32_t hash = 2166136261u;
    for (const char *at = name; *at != '\0'; at++) {
        hash = (hash ^ (uint8_t)*at) * 16777619u;
    }
    return hash;
}

char *td_temporary_name(const char *path)
{
    size_t size = strlen(path) + 48;
    char *name = malloc(size);
    if (name == NULL) {
        td_fail(TD_E_NOMEM, "no memory for the name of a file beside %s", path);
        return NULL;
    }
    snprintf(name, size, "%s" TD_TEMPORARY_MARK "%08" PRIx32 ".%ld", path, td_host_number(),
             (long)getpid());
    return name;
}
