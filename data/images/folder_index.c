/* The index file of a folder of pictures: what a walk found, and the time of last change of every
 * folder that it read. Adding, removing or renaming a file changes its folder's time, so the list
 * is good exactly as long as no folder's time has changed. One case cannot be told by times: a
 * change in the same tick of the file system's clock as the walk; so folders that were changed
 * within a moment before the walk make the index count as old.
 *
 * Lines of text: a head, the root, the walk's time; "D seconds nanoseconds inode path" for each
 * folder, "C name" for each class, "P label path" for each picture; "END". */
#include "data/images/folder_list.h"
#include "tensor/temporary.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define HEAD "tandem index 1"
enum { MOMENT = 2 /* seconds */ };

/* ---- writing ---- */

static bool writable_name(const char *name)
{
    return strchr(name, '\n') == NULL;
}

static bool write_lines(FILE *out, const char *root, const td_folder_list *list)
{
    fprintf(out, "%s\n%s\n%lld\n", HEAD, root, (long long)time(NULL));
    bool good = writable_name(root);
    for (int64_t i = 0; i < list->folder_count; i++) {
        const td_folder_stamp *f = &list->folders[i];
        good = good && writable_name(f->path);
        fprintf(out, "D %lld %lld %" PRIu64 " %s\n", (long long)f->seconds,
                (long long)f->nanoseconds, f->inode, f->path);
    }
    for (int i = 0; i < list->class_count; i++) {
        fprintf(out, "C %s\n", list->classes[i]);
    }
    for (int64_t i = 0; i < list->count; i++) {
        good = good && writable_name(list->paths[i]);
        fprintf(out, "P %d %s\n", list->labels[i], list->paths[i]);
    }
    fputs("END\n", out);
    return good;
}

/* A name with a line break cannot be written: then there is no index. */
td_status td_folder_list_remember(const char *root, const char *index, const td_folder_list *list)
{
    char *temporary;
    FILE *out = td_temporary_file(index, &temporary);
    bool good = out != NULL && write_lines(out, root, list);
    return out != NULL && td_temporary_end(out, temporary, good ? index : NULL) == NULL
               ? TD_OK
               : td_fail(TD_E_IO, "%s: cannot be written: %s", index, strerror(errno));
}

/* ---- reading ---- */

typedef struct recall {
    const char *root;
    td_folder_list *list;
    int64_t walked; /* when */
} recall;

static bool folder_is_same(const recall *r, const td_folder_stamp *stamp)
{
    char path[8192];
    snprintf(path, sizeof path, "%s%s%s", r->root, *stamp->path != '\0' ? "/" : "", stamp->path);
    struct stat info;
    return stat(path, &info) == 0 && info.st_mtim.tv_sec == stamp->seconds &&
           info.st_mtim.tv_nsec == stamp->nanoseconds && info.st_ino == stamp->inode &&
           stamp->seconds + MOMENT < r->walked;
}

static bool take_folder(recall *r, const char *line)
{
    char *end;
    td_folder_stamp stamp = { .seconds = strtoll(line, &end, 10) };
    stamp.nanoseconds = strtoll(end, &end, 10);
    stamp.inode = strtoull(end, &end, 10);
    if (*end != ' ') {
        return false;
    }
    stamp.path = strdup(end + 1);
    return td_folder_list_add_folder(r->list, stamp) &&
           folder_is_same(r, &r->list->folders[r->list->folder_count - 1]);
}

static bool take_picture(recall *r, const char *line)
{
    char *end;
    long label = strtol(line, &end, 10);
    return *end == ' ' && end[1] != '\0' && label >= 0 && label < r->list->class_count &&
           td_folder_list_add_sample(r->list, strdup(end + 1), (int32_t)label);
}

static bool take_line(recall *r, const char *line)
{
    switch (line[0] != '\0' && line[1] == ' ' ? line[0] : '\0') {
    case 'D':
        return take_folder(r, line + 2);
    case 'C':
        return td_folder_list_add_class(r->list, strdup(line + 2));
    case 'P':
        return take_picture(r, line + 2);
    default:
        return false;
    }
}

/* The next line without its end, or NULL. */
static char *next_line(FILE *in, char **line, size_t *room)
{
    ssize_t length = getline(line, room, in);
    if (length <= 0 || (*line)[length - 1] != '\n') {
        return NULL;
    }
    (*line)[length - 1] = '\0';
    return *line;
}

static bool take_lines(recall *r, FILE *in, char **line, size_t *room)
{
    bool head = next_line(in, line, room) != NULL && strcmp(*line, HEAD) == 0 &&
                next_line(in, line, room) != NULL && strcmp(*line, r->root) == 0 &&
                next_line(in, line, room) != NULL;
    if (!head) {
        return false;
    }
    r->walked = strtoll(*line, NULL, 10);
    while (next_line(in, line, room) != NULL) {
        if (strcmp(*line, "END") == 0) {
            return r->list->count > 0 && r->list->folder_count > 0;
        }
        if (!take_line(r, *line)) {
            return false;
        }
    }
    return false;
}

bool td_folder_list_recall(const char *root, const char *index, td_folder_list *list)
{
    *list = (td_folder_list){ .count = 0 };
    FILE *in = fopen(index, "r");
    if (in == NULL) {
        return false;
    }
    recall r = { .root = root, .list = list };
    char *line = NULL;
    size_t room = 0;
    bool good = take_lines(&r, in, &line, &room);
    free(line);
    fclose(in);
    if (!good) {
        td_folder_list_free(list);
    }
    return good;
}
