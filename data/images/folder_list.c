/* Reads a folder of images: its classes and the paths of their files. */
#include "data/dataset.h"
#include "data/images/folder_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { PATH = 4096, DEEPEST = 32 };

void td_folder_list_free(td_folder_list *list)
{
    for (int i = 0; i < list->class_count; i++) {
        free(list->classes[i]);
    }
    for (int64_t i = 0; i < list->count; i++) {
        free(list->paths[i]);
    }
    free(list->classes);
    free(list->paths);
    free(list->labels);
    *list = (td_folder_list){ .count = 0 };
}

/* ---- growing ---- */

static td_status no_memory(const char *root)
{
    return td_fail(TD_E_NOMEM, "%s: no memory for the list of images", root);
}

static td_status add_sample(td_folder_list *list, const char *root, const char *path)
{
    if (!td_grow(&list->labels, list->count, sizeof *list->labels) ||
        !td_add_text(&list->paths, list->count, path)) {
        return no_memory(root);
    }
    list->labels[list->count++] = list->class_count - 1;
    return TD_OK;
}

/* ---- one folder's entries ---- */

static int is_entry(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* suffixes: each with a dot before and after it. */
static bool has_suffix(const char *name, const char *suffixes)
{
    const char *dot = strrchr(name, '.');
    char text[16];
    int length = dot != NULL ? snprintf(text, sizeof text, "%s.", dot) : 0;
    return length > 2 && length < (int)sizeof text && strcasestr(suffixes, text) != NULL;
}

static const char taken[] = ".jpg.jpeg.png.", others[] = ".bmp.gif.pgm.ppm.tif.tiff.webp.";

static td_status join(char *path, const char *folder, const char *name)
{
    int length = snprintf(path, PATH, "%s/%s", folder, name);
    return length < PATH ? TD_OK : td_fail(TD_E_IO, "%s/%s: the path is too long", folder, name);
}

static td_status cannot(const char *path, const char *what)
{
    return td_fail(errno == ENOENT ? TD_E_NOTFOUND : TD_E_IO, "%s: cannot be %s: %s", path, what,
                   strerror(errno));
}

/* What an entry is; links are followed. Most file systems say so without being asked twice. */
static td_status is_folder(const char *folder, const struct dirent *entry, bool *yes)
{
    *yes = entry->d_type == DT_DIR;
    if (entry->d_type == DT_DIR || entry->d_type == DT_REG) {
        return TD_OK;
    }
    char path[PATH];
    struct stat info;
    TD_TRY(join(path, folder, entry->d_name));
    if (stat(path, &info) != 0) {
        return errno == ELOOP
                   ? td_fail(TD_E_FORMAT, "%s: this link leads in a circle; remove it", path)
                   : cannot(path, "followed");
    }
    *yes = S_ISDIR(info.st_mode);
    return TD_OK;
}

/* ---- the tree ---- */

/* Images of a folder and all below, as they come; they are sorted later.
 * NOLINTNEXTLINE(misc-no-recursion): at most DEEPEST folders deep. */
static td_status walk_class(td_folder_list *list, const char *root, const char *relative, int depth)
{
    char path[PATH], below[PATH];
    struct dirent **entries;
    TD_TRY(join(path, root, relative));
    if (depth == DEEPEST) {
        return td_fail(TD_E_FORMAT,
                       "%s: more than %d folders inside each other; if a link leads in a circle, "
                       "remove it",
                       path, DEEPEST);
    }
    int count = scandir(path, &entries, is_entry, NULL);
    if (count < 0) {
        return cannot(path, "read");
    }
    td_status status = TD_OK;
    for (int i = 0; i < count; i++) {
        bool folder = false;
        status = status == TD_OK ? is_folder(path, entries[i], &folder) : status;
        status = status == TD_OK ? join(below, relative, entries[i]->d_name) : status;
        if (status == TD_OK && folder) {
            status = walk_class(list, root, below, depth + 1);
        } else if (status == TD_OK && has_suffix(entries[i]->d_name, taken)) {
            status = add_sample(list, root, below);
        } else if (status == TD_OK && has_suffix(entries[i]->d_name, others)) {
            status = td_fail(TD_E_UNSUPPORTED,
                             "%s/%s: images are read from JPEG and PNG files; convert this one "
                             "(mogrify -format png), or remove it",
                             root, below);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* torchvision sorts by folder, and within each by name. */
static int by_folder(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const char *slash_x = strrchr(x, '/'), *slash_y = strrchr(y, '/');
    size_t length_x = (size_t)(slash_x - x), length_y = (size_t)(slash_y - y);
    size_t common = length_x < length_y ? length_x : length_y;
    int order = memcmp(x, y, common);
    if (order == 0 && length_x != length_y) {
        order = length_x < length_y ? -1 : 1;
    }
    return order != 0 ? order : strcmp(slash_x, slash_y);
}

static td_status add_class(td_folder_list *list, const char *root, const char *name)
{
    int64_t first = list->count;
    if (!td_add_text(&list->classes, list->class_count, name)) {
        return no_memory(root);
    }
    list->class_count++;
    TD_TRY(walk_class(list, root, name, 0));
    if (list->count == first) {
        return td_fail(TD_E_NOTFOUND,
                       "%s/%s: no image (jpg, jpeg, png) in this class; add some or remove the "
                       "folder",
                       root, name);
    }
    qsort(list->paths + first, (size_t)(list->count - first), sizeof *list->paths, by_folder);
    return TD_OK;
}

td_status td_folder_list_read(const char *root, td_folder_list *list)
{
    *list = (td_folder_list){ .count = 0 };
    struct dirent **entries;
    int count = scandir(root, &entries, is_entry, by_name);
    if (count < 0) {
        return cannot(root, "read");
    }
    td_status status = TD_OK;
    for (int i = 0; i < count; i++) {
        bool folder = false;
        status = status == TD_OK ? is_folder(root, entries[i], &folder) : status;
        if (status == TD_OK && folder) {
            status = add_class(list, root, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    if (status == TD_OK && list->class_count == 0) {
        status = td_fail(TD_E_NOTFOUND,
                         "%s: no sub-folders: each class of images has one of its name", root);
    }
    if (status != TD_OK) {
        td_folder_list_free(list);
    }
    return status;
}
