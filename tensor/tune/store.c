/* Keeps plans of library calls on disk. */
#include "tensor/tune/store.h"

#include "tensor/system/files.h"
#include "tensor/system/folders.h"
#include "tensor/system/temporary.h"
#include "tensor/system/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, HEAD_BYTES = 1024 };
static const char tail[] = "\nend\n";

/* ---- where ---- */

/* The folder of all owners, with a slash; false: there is to be none. */
static bool cache_folder(char *folder, size_t size)
{
    const char *chosen = getenv("TANDEM_CACHE"), *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int length = 0;
    if (chosen != NULL && chosen[0] != '\0') {
        length = strcmp(chosen, "off") == 0 ? 0 : snprintf(folder, size, "%s/", chosen);
    } else if (xdg != NULL && xdg[0] == '/') {
        length = snprintf(folder, size, "%s/tandem/", xdg);
    } else if (home != NULL && home[0] == '/') {
        length = snprintf(folder, size, "%s/.cache/tandem/", home);
    }
    return length > 0 && (size_t)length < size;
}

/* "NVIDIA-H200-sm_90-cuDNN-91900" */
static void append_name(char *path, const char *text)
{
    size_t length = strlen(path), first = length;
    for (; *text != '\0' && length + 1 < PATH_BYTES; text++) {
        if (isalnum((unsigned char)*text) || *text == '_' || *text == '.') {
            path[length++] = *text;
        } else if (length > first && path[length - 1] != '-') {
            path[length++] = '-';
        }
    }
    path[length] = '\0';
}

static bool plan_path(const char *owner, const char *key, char path[PATH_BYTES])
{
    if (owner == NULL || !cache_folder(path, PATH_BYTES / 2)) {
        return false;
    }
    append_name(path, owner);
    strcat(path, "/");
    append_name(path, key);
    return true;
}

/* ---- a file ---- */

/* What stands before the plan's text. */
static int store_head_of(const char *owner, const char *key, char head[HEAD_BYTES])
{
    int length = snprintf(head, HEAD_BYTES, "tandem-plan 1\n%s\n%s\n", owner, key);
    return length < HEAD_BYTES ? length : HEAD_BYTES - 1;
}

/* Cuts the head and the tail off what a file holds; false: it holds something else. */
static bool take_text(char *contents, size_t *bytes, const char *owner, const char *key)
{
    char head[HEAD_BYTES];
    size_t before = (size_t)store_head_of(owner, key, head), after = sizeof tail - 1;
    if (*bytes < before + after || memcmp(contents, head, before) != 0 ||
        memcmp(contents + *bytes - after, tail, after) != 0) {
        return false;
    }
    *bytes -= before + after;
    memmove(contents, contents + before, *bytes);
    contents[*bytes] = '\0';
    return true;
}

char *td_plan_get(const char *owner, const char *key, size_t *bytes)
{
    char path[PATH_BYTES], *contents;
    if (!plan_path(owner, key, path)) {
        return NULL;
    }
    td_status status =
        td_read_file(path, "a plan", TD_PLAN_TEXT_MAX + HEAD_BYTES, &contents, bytes);
    if (status == TD_OK && !take_text(contents, bytes, owner, key)) {
        free(contents);
        status = TD_E_FORMAT;
    }
    if (status != TD_OK && status != TD_E_NOTFOUND) {
        td_notice("%s is not a plan of this version for %s: the plan is made again", path, owner);
    }
    return status == TD_OK ? contents : NULL;
}

static bool write_plan(FILE *file, const char *owner, const char *key, const char *text,
                       size_t bytes)
{
    char head[HEAD_BYTES];
    size_t length = (size_t)store_head_of(owner, key, head);
    return fwrite(head, 1, length, file) == length && fwrite(text, 1, bytes, file) == bytes &&
           fputs(tail, file) >= 0;
}

void td_plan_put(const char *owner, const char *key, const char *text, size_t bytes)
{
    char path[PATH_BYTES], *name;
    if (!plan_path(owner, key, path) || bytes > TD_PLAN_TEXT_MAX) {
        return;
    }
    if (td_make_folder_of(path) != TD_OK) {
        td_notice("plans cannot be kept for the next run: %s", td_last_error());
        return;
    }
    FILE *file = td_temporary_file(path, &name);
    bool written = file != NULL && write_plan(file, owner, key, text, bytes);
    written = file != NULL && fclose(file) == 0 && written && td_temporary_rename(name);
    if (!written) {
        int failure = errno;
        if (name != NULL) {
            unlink(name);
        }
        *strrchr(path, '/') = '\0'; /* one notice for all plans */
        td_notice("plans cannot be kept in %s for the next run: %s", path, strerror(failure));
    }
    free(name);
}

void td_plan_remove(const char *owner, const char *key)
{
    char path[PATH_BYTES];
    if (plan_path(owner, key, path)) {
        unlink(path);
    }
}
