#include "data/images/folder_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { PATH = 4096, DEEPEST = 32 };

/* ---- growing ---- */

/* The items with room for one more of `size` bytes; NULL: no memory, and they are as they were. */
static void *grow(void *items, int64_t count, int64_t *capacity, size_t size)
{
    if (count < *capacity) {
        return items;
    }
    int64_t more = *capacity > 0 ? 2 * *capacity : 64;
    void *grown = realloc(items, (size_t)more * size);
    if (grown != NULL) {
        *capacity = more;
    }
    return grown;
}

bool td_folder_list_add_sample(td_folder_list *list, char *path, int32_t label)
{
    int64_t capacity = list->capacity;
    int32_t *labels = grow(list->labels, list->count, &capacity, sizeof *labels);
    if (labels != NULL) {
        list->labels = labels;
    }
    char **paths = grow(list->paths, list->count, &list->capacity, sizeof *paths);
    if (paths != NULL) {
        list->paths = paths;
    }
    if (path == NULL || labels == NULL || paths == NULL) {
        free(path);
        return false;
    }
    paths[list->count] = path;
    labels[list->count++] = label;
    return true;
}

bool td_folder_list_add_folder(td_folder_list *list, td_folder_stamp stamp)
{
    td_folder_stamp *folders =
        grow(list->folders, list->folder_count, &list->folder_capacity, sizeof *folders);
    if (folders != NULL) {
        list->folders = folders;
    }
    if (stamp.path == NULL || folders == NULL) {
        free(stamp.path);
        return false;
    }
    folders[list->folder_count++] = stamp;
    return true;
}

bool td_folder_list_add_class(td_folder_list *list, char *name)
{
    char **classes = realloc(list->classes, ((size_t)list->class_count + 1) * sizeof *classes);
    if (classes != NULL) {
        list->classes = classes;
    }
    if (name == NULL || classes == NULL) {
        free(name);
        return false;
    }
    classes[list->class_count++] = name;
    return true;
}

void td_folder_list_free(td_folder_list *list)
{
    for (int i = 0; i < list->class_count; i++) {
        free(list->classes[i]);
    }
    for (int64_t i = 0; i < list->count; i++) {
        free(list->paths[i]);
    }
    for (int64_t i = 0; i < list->folder_count; i++) {
        free(list->folders[i].path);
    }
    free(list->classes);
    free(list->paths);
    free(list->labels);
    free(list->folders);
    *list = (td_folder_list){ .count = 0 };
}

/* ---- one folder's entries ---- */

typedef struct entries {
    char **name;
    int64_t count, capacity;
} entries;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_entries(entries *e)
{
    for (int64_t i = 0; i < e->count; i++) {
        free(e->name[i]);
    }
    free(e->name);
    *e = (entries){ .count = 0 };
}

static td_status no_memory(const char *folder)
{
    return td_fail(TD_E_NOMEM, "%s: no memory for the list of images", folder);
}

static td_status add_entry(entries *e, const char *folder, const char *name)
{
    char *copy = strdup(name);
    char **names = grow(e->name, e->count, &e->capacity, sizeof *names);
    if (names != NULL) {
        e->name = names;
    }
    if (copy == NULL || names == NULL) {
        free(copy);
        return no_memory(folder);
    }
    e->name[e->count++] = copy;
    return TD_OK;
}

static bool has_suffix(const char *name)
{
    static const char *const suffixes[] = { ".jpg", ".jpeg", ".png", ".bmp", ".gif" };
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t size = strlen(suffixes[i]);
        if (length >= size && strcasecmp(name + length - size, suffixes[i]) == 0) {
            return true;
        }
    }
    return false;
}

static td_status join(char *path, const char *folder, const char *name)
{
    int length =
        snprintf(path, PATH, "%s%s%s", folder, *folder != '\0' && *name != '\0' ? "/" : "", name);
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
    if (entry->d_type == DT_DIR || entry->d_type == DT_REG) {
        *yes = entry->d_type == DT_DIR;
        return TD_OK;
    }
    char path[PATH];
    TD_TRY(join(path, folder, entry->d_name));
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno == ELOOP) {
            return td_fail(TD_E_FORMAT, "%s: this link leads in a circle; remove it", path);
        }
        return cannot(path, "followed");
    }
    *yes = S_ISDIR(info.st_mode);
    return TD_OK;
}

/* The names of folder's sub-folders and pictures, sorted. */
static td_status read_entries(const char *folder, entries *folders, entries *pictures)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return cannot(folder, "read");
    }
    td_status status = TD_OK;
    errno = 0;
    for (struct dirent *entry; status == TD_OK && (entry = readdir(dir)) != NULL; errno = 0) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
            continue;
        }
        bool sub = false;
        if (entry->d_type == DT_REG && !has_suffix(name)) {
            continue;
        }
        status = is_folder(folder, entry, &sub);
        if (status == TD_OK && (sub || has_suffix(name))) {
            status = add_entry(sub ? folders : pictures, folder, name);
        }
    }
    if (status == TD_OK && errno != 0) {
        status = cannot(folder, "read");
    }
    closedir(dir);
    if (folders->count > 1) {
        qsort(folders->name, (size_t)folders->count, sizeof *folders->name, by_name);
    }
    if (pictures->count > 1) {
        qsort(pictures->name, (size_t)pictures->count, sizeof *pictures->name, by_name);
    }
    return status;
}

/* ---- the tree ---- */

typedef struct walk {
    const char *root;
    td_folder_list *list;
    struct {
        dev_t device;
        ino_t inode;
    } above[DEEPEST]; /* the folders that we are in: meeting one again is a circle */
    int depth;
} walk;

static td_status enter(walk *w, const char *path, const char *relative)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return cannot(path, "read");
    }
    if (w->depth == DEEPEST) {
        return td_fail(TD_E_FORMAT, "%s: more than %d folders inside each other", path, DEEPEST);
    }
    for (int i = 0; i < w->depth; i++) {
        if (w->above[i].device == info.st_dev && w->above[i].inode == info.st_ino) {
            return td_fail(TD_E_FORMAT, "%s: this link leads in a circle; remove it", path);
        }
    }
    w->above[w->depth].device = info.st_dev;
    w->above[w->depth++].inode = info.st_ino;
    td_folder_stamp stamp = { strdup(relative), info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                              info.st_ino };
    return td_folder_list_add_folder(w->list, stamp) ? TD_OK : no_memory(path);
}

static td_status add_pictures(walk *w, const char *relative, const entries *pictures, int32_t label)
{
    for (int64_t i = 0; i < pictures->count; i++) {
        char path[PATH];
        TD_TRY(join(path, relative, pictures->name[i]));
        if (!td_folder_list_add_sample(w->list, strdup(path), label)) {
            return no_memory(w->root);
        }
    }
    return TD_OK;
}

/* Pictures of a folder and all below, as they come; they are sorted later. */
static td_status walk_class(walk *w, const char *relative, int32_t label)
{
    char path[PATH];
    TD_TRY(join(path, w->root, relative));
    TD_TRY(enter(w, path, relative));
    entries folders = { .count = 0 }, pictures = { .count = 0 };
    td_status status = read_entries(path, &folders, &pictures);
    if (status == TD_OK) {
        status = add_pictures(w, relative, &pictures, label);
    }
    for (int64_t i = 0; i < folders.count && status == TD_OK; i++) {
        char below[PATH];
        status = join(below, relative, folders.name[i]);
        if (status == TD_OK) {
            status = walk_class(w, below, label);
        }
    }
    free_entries(&folders);
    free_entries(&pictures);
    w->depth--;
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

static td_status walk_classes(walk *w, const entries *classes)
{
    td_folder_list *list = w->list;
    for (int64_t i = 0; i < classes->count; i++) {
        int64_t first = list->count;
        if (!td_folder_list_add_class(list, strdup(classes->name[i]))) {
            return no_memory(w->root);
        }
        TD_TRY(walk_class(w, classes->name[i], (int32_t)i));
        if (list->count == first) {
            return td_fail(TD_E_NOTFOUND,
                           "%s/%s: no image (jpg, jpeg, png, bmp, gif) in this class; add some or "
                           "remove the folder",
                           w->root, classes->name[i]);
        }
        qsort(list->paths + first, (size_t)(list->count - first), sizeof *list->paths, by_folder);
    }
    return TD_OK;
}

td_status td_folder_list_read(const char *root, td_folder_list *list)
{
    *list = (td_folder_list){ .count = 0 };
    walk w = { .root = root, .list = list };
    entries classes = { .count = 0 }, pictures = { .count = 0 };
    td_status status = enter(&w, root, "");
    if (status == TD_OK) {
        status = read_entries(root, &classes, &pictures);
    }
    if (status == TD_OK && classes.count == 0) {
        status = td_fail(TD_E_NOTFOUND,
                         "%s: no sub-folders: each class of images has one of its name", root);
    }
    if (status == TD_OK) {
        status = walk_classes(&w, &classes);
    }
    free_entries(&classes);
    free_entries(&pictures);
    if (status != TD_OK) {
        td_folder_list_free(list);
    }
    return status;
}
