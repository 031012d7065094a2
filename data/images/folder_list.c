/* Reads a folder of images: its classes and the paths of their files. */
#include "data/dataset.h"
#include "data/images/folder_list.h"
#include "tensor/system/list.h"
#include "tensor/system/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { PATH = 4096, DEEPEST = 32 };

void td_folder_list_free(td_folder_list *list)
{
    td_class_names_free(&list->classes);
    td_free_texts(list->paths, list->count);
    free(list->labels);
    *list = (td_folder_list){ .count = 0 };
}

/* ---- one folder's entries ---- */

static int is_entry(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* What systems and programs put next to images: copies, thumbnails and settings, no class's images.
 */
static bool is_hidden(const char *name)
{
    static const char *const table[] = {
        "__MACOSX",   "@eaDir",    "$RECYCLE.BIN", "System Volume Information",
        "lost+found", "Thumbs.db", "desktop.ini",  "ehthumbs.db",
        "Icon\r",
    };
    bool hidden = name[0] == '.';
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        hidden = hidden || strcasecmp(name, table[i]) == 0;
    }
    return hidden;
}

static int folder_by_name(const struct dirent **a, const struct dirent **b)
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

static const char taken[] = ".jpg.jpeg.png.bmp.gif.tga.psd.pgm.ppm.pnm.hdr.",
                  others[] = ".tif.tiff.webp.heic.avif.pbm.";

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

static td_status take_file(td_folder_list *list, const char *root, const char *path, int label)
{
    TD_CHECK(
        !has_suffix(path, others), TD_E_UNSUPPORTED,
        "%s/%s: this kind of image is not read; convert it (mogrify -format png), or remove it",
        root, path);
    if (!has_suffix(path, taken)) {
        return TD_OK;
    }
    TD_CHECK(td_grow(&list->labels, list->count, sizeof *list->labels) &&
                 td_add_text(&list->paths, list->count, path),
             TD_E_NOMEM, "%s: no memory for the list of images", root);
    list->labels[list->count++] = label;
    return TD_OK;
}

/* Images of a folder and all below, as they come; they are sorted later.
 * NOLINTNEXTLINE(misc-no-recursion): at most DEEPEST folders deep. */
static td_status walk_class(td_folder_list *list, const char *root, const char *relative, int label,
                            int depth)
{
    char path[PATH], below[PATH];
    struct dirent **entries;
    TD_TRY(join(path, root, relative));
    TD_CHECK(depth != DEEPEST, TD_E_FORMAT,
             "%s: more than %d folders inside each other; if a link leads in a circle, remove it",
             path, DEEPEST);
    int count = scandir(path, &entries, is_entry, NULL);
    if (count < 0) {
        return cannot(path, "read");
    }
    td_status status = TD_OK;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        bool hidden = is_hidden(name), folder = false;
        list->hidden += hidden;
        if (status == TD_OK && !hidden) {
            status = is_folder(path, entries[i], &folder);
            status = status == TD_OK ? join(below, relative, name) : status;
            status = status != TD_OK ? status
                     : folder        ? walk_class(list, root, below, label, depth + 1)
                                     : take_file(list, root, below, label);
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

static td_status walk_sorted(td_folder_list *list, const char *root, const char *name, int label)
{
    int64_t first = list->count;
    TD_TRY(walk_class(list, root, name, label, 0));
    TD_CHECK(list->count != first, TD_E_NOTFOUND,
             "%s/%s: no image (jpg, png, bmp, ...) in this class; add some or remove the folder",
             root, name);
    qsort(list->paths + first, (size_t)(list->count - first), sizeof *list->paths, by_folder);
    return TD_OK;
}

/* ---- classes ---- */

static td_status add_folder(const char *root, const char *name, td_class_names *folders)
{
    char place[PATH];
    snprintf(place, sizeof place, "%s: a sub-folder", root);
    return td_class_names_add(folders, place, name);
}

/* The sub-folders, sorted by name. */
static td_status list_folders(const char *root, td_class_names *folders, int64_t *hidden)
{
    struct dirent **entries;
    int count = scandir(root, &entries, is_entry, folder_by_name);
    if (count < 0) {
        return cannot(root, "read");
    }
    td_status status = TD_OK;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        bool folder = false;
        if (is_hidden(name)) {
            ++*hidden;
        } else if (status == TD_OK) {
            status = is_folder(root, entries[i], &folder);
            status = status == TD_OK && folder ? add_folder(root, name, folders) : status;
        }
        free(entries[i]);
    }
    free(entries);
    return status == TD_OK && folders->count == 0
               ? td_fail(TD_E_NOTFOUND,
                         "%s: no sub-folders: each class of images has one of its name", root)
               : status;
}

/* Whether a letter and its accent are two characters (U+0300 to U+036F), as macOS writes names. */
static bool has_accents_apart(const char *name)
{
    bool apart = false;
    for (const unsigned char *c = (const unsigned char *)name; *c != '\0'; c++) {
        apart = apart || (c[0] == 0xcc && c[1] >= 0x80) || (c[0] == 0xcd && c[1] < 0xb0);
    }
    return apart;
}

static td_status unknown_class(const char *root, const char *name, const td_class_names *folders,
                               const char *const *names, int count)
{
    char there[TD_CLASS_LIST], known[TD_CLASS_LIST];
    const char *const *folder = (const char *const *)folders->name;
    const char *nearest = td_nearest_name(name, names, count);
    bool accents = has_accents_apart(name) != has_accents_apart(nearest);
    return td_fail(TD_E_MISMATCH,
                   "%s: the sub-folder '%.200s' has the name of no class; the nearest is "
                   "'%.200s'%s. The folder has %s. There should be no others than these %s",
                   root, name, nearest,
                   accents ? ", whose accents are written in the other way of Unicode (convmv "
                             "--nfc or --nfd renames)"
                           : "",
                   td_class_names_show(folder, folders->count, there),
                   td_class_names_show(names, count, known));
}

/* The images of all sub-folders. */
static td_status walk_all(const char *root, const char *const *names, int count,
                          const td_class_names *folders, td_folder_list *list)
{
    int label = -1;
    for (int i = 0; i < folders->count; i++) { /* all names, before any image */
        label = td_class_names_find(names, count, folders->name[i], label + 1);
        if (label < 0) {
            return unknown_class(root, folders->name[i], folders, names, count);
        }
    }
    for (int i = 0; i < folders->count; i++) {
        label = td_class_names_find(names, count, folders->name[i], label + 1);
        TD_TRY(walk_sorted(list, root, folders->name[i], label));
    }
    if (folders->count < count) {
        char there[TD_CLASS_LIST];
        td_notice("%.200s: labels go by the names of the sub-folders, which are %s, of %d", root,
                  td_class_names_show((const char *const *)folders->name, folders->count, there),
                  count);
    }
    return td_class_names_copy(names, count, &list->classes);
}

td_status td_folder_list_read(const char *root, const char *const *names, int count,
                              td_folder_list *list)
{
    *list = (td_folder_list){ .count = 0 };
    td_class_names folders = { .count = 0 };
    td_status status = list_folders(root, &folders, &list->hidden);
    if (status == TD_OK) {
        bool known = count > 0;
        status = walk_all(root, known ? names : (const char *const *)folders.name,
                          known ? count : folders.count, &folders, list);
    }
    td_class_names_free(&folders);
    if (list->hidden > 0) {
        td_notice("%.200s: skipped %lld hidden files and folders (names that begin with a dot, "
                  "__MACOSX, Thumbs.db and the like)",
                  root, (long long)list->hidden);
    }
    if (status != TD_OK) {
        td_folder_list_free(list);
    }
    return status;
}
