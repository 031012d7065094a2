/* Reading safetensors files. The file may be damaged or hostile: nothing of it is used before it is
 * checked, and what a check finds is said with the name of the tensor. */
#include "nn/io/safetensors_internal.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER = 100000000 }; /* bytes: the format's own limit */

/* ---- order: no holes, no overlaps, no name twice ---- */

static int compare_data(const void *a, const void *b)
{
    const td_safetensors_entry *x = a, *y = b;
    uintptr_t begin_x = (uintptr_t)x->data, begin_y = (uintptr_t)y->data;
    if (begin_x != begin_y) {
        return begin_x < begin_y ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static td_status check_data(td_safetensors *file, const char *data, int64_t data_size)
{
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_data);
    const char *end = data;
    for (int i = 0; i < file->count; i++) {
        const td_safetensors_entry *entry = &file->entries[i];
        TD_CHECK(entry->data == end, TD_E_FORMAT, "the data of tensor '%s' %s", entry->name,
                 (const char *)entry->data < end ? "overlap those of another tensor"
                                                 : "begin after a hole");
        end += entry->bytes;
    }
    TD_CHECK(end == data + data_size, TD_E_FORMAT,
             "%lld bytes at the end of the file belong to no tensor",
             (long long)(data + data_size - end));
    return TD_OK;
}

static int compare_names(const void *a, const void *b)
{
    const td_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static td_status sort_names(td_safetensors *file)
{
    for (int i = 0; i < file->count; i++) {
        file->by_name[i] = &file->entries[i];
    }
    qsort(file->by_name, (size_t)file->count, sizeof(void *), compare_names);
    for (int i = 1; i < file->count; i++) {
        TD_CHECK(compare_names(&file->by_name[i - 1], &file->by_name[i]) != 0, TD_E_FORMAT,
                 "the header has tensor '%s' twice", file->by_name[i]->name);
    }
    return TD_OK;
}

/* The format does not align data; who reads them as numbers needs them aligned. */
static td_status align_data(td_safetensors *file)
{
    for (int i = 0; i < file->count; i++) {
        td_safetensors_entry *entry = &file->entries[i];
        if ((uintptr_t)entry->data % td_dtype_size(entry->dtype) != 0) {
            void *copy = malloc(entry->bytes + 1);
            TD_CHECK(copy != NULL, TD_E_NOMEM, "no memory for the %zu bytes of tensor '%s'",
                     entry->bytes, entry->name);
            entry->data = memcpy(copy, entry->data, entry->bytes);
        }
    }
    return TD_OK;
}

static bool is_copy(const td_safetensors *file, const void *data)
{
    return (uintptr_t)data - (uintptr_t)file->bytes > file->size;
}

/* ---- the whole ---- */

static td_status parse(td_safetensors *file)
{
    size_t size = file->size;
    TD_CHECK(size >= TD_SAFETENSORS_LENGTH, TD_E_FORMAT,
             "%zu bytes are too few for a safetensors file", size);
    TD_CHECK(memcmp(file->bytes, "PK\3\4", 4) != 0, TD_E_FORMAT,
             "a PyTorch file (zip), not a safetensors file: load it in Python, and save its "
             "tensors with safetensors.torch.save_file");
    const char *header = file->bytes + TD_SAFETENSORS_LENGTH;
    size -= TD_SAFETENSORS_LENGTH;
    uint64_t length = 0;
    for (int i = TD_SAFETENSORS_LENGTH - 1; i >= 0; i--) {
        length = length << 8 | (unsigned char)file->bytes[i];
    }
    TD_CHECK(length >= 2 && length <= MAX_HEADER, TD_E_FORMAT,
             "it says that its header has %llu bytes; possible are 2 to %d: this is no safetensors "
             "file, or a damaged one",
             (unsigned long long)length, MAX_HEADER);
    TD_CHECK(length <= size, TD_E_FORMAT,
             "the header should have %llu bytes, but only %zu are there: the file was cut short",
             (unsigned long long)length, size);
    const char *data = header + length;
    int64_t data_size = (int64_t)(size - length);
    TD_TRY(td_safetensors_read_header(file, header, (size_t)length, data, data_size));
    TD_TRY(check_data(file, data, data_size));
    TD_TRY(sort_names(file));
    return align_data(file);
}

td_status td_safetensors_parse(const void *bytes, size_t size, td_safetensors **file)
{
    *file = calloc(1, sizeof **file);
    TD_CHECK(*file != NULL, TD_E_NOMEM, "no memory to read a safetensors file");
    (*file)->bytes = bytes;
    (*file)->size = size;
    td_status status = parse(*file);
    if (status != TD_OK) {
        td_safetensors_close(*file);
        *file = NULL;
    }
    return status;
}

static td_status map_file(int fd, const char *path, void **map, size_t *size)
{
    struct stat info;
    TD_CHECK(fstat(fd, &info) == 0, TD_E_IO, "cannot look at '%s': %s", path, strerror(errno));
    TD_CHECK(S_ISREG(info.st_mode), TD_E_FORMAT,
             "'%s' is no file; give the path of a checkpoint file", path);
    TD_CHECK(info.st_size > 0, TD_E_FORMAT, "'%s' is empty; a checkpoint never is", path);
    *size = (size_t)info.st_size;
    *map = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
    TD_CHECK(*map != MAP_FAILED, TD_E_IO, "cannot map '%s': %s", path, strerror(errno));
    return TD_OK;
}

td_status td_safetensors_open(const char *path, td_safetensors **file)
{
    *file = NULL;
    void *map = NULL;
    size_t size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a FIFO */
    TD_CHECK(fd >= 0, errno == ENOENT ? TD_E_NOTFOUND : TD_E_IO, "cannot open '%s': %s", path,
             strerror(errno));
    td_status status = map_file(fd, path, &map, &size);
    close(fd);
    TD_TRY(status);
    status = td_safetensors_parse(map, size, file);
    if (status != TD_OK) {
        munmap(map, size);
        return td_fail_context(status, "'%s' cannot be used", path);
    }
    (*file)->mapped = true;
    return TD_OK;
}

void td_safetensors_close(td_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    for (int i = 0; i < file->count; i++) {
        if (is_copy(file, file->entries[i].data)) {
            free((void *)(uintptr_t)file->entries[i].data);
        }
    }
    free(file->entries);
    free(file->by_name);
    cJSON_Delete(file->header);
    if (file->mapped) {
        munmap((void *)(uintptr_t)file->bytes, file->size);
    }
    free(file);
}

/* ---- looking ---- */

int td_safetensors_count(const td_safetensors *file)
{
    return file->count;
}

const td_safetensors_entry *td_safetensors_get(const td_safetensors *file, int i)
{
    TD_REQUIRE(i >= 0 && i < file->count, TD_HERE,
               "td_safetensors_get: there is no tensor %d of %d", i, file->count);
    return &file->entries[i];
}

const td_safetensors_entry *td_safetensors_find(const td_safetensors *file, const char *name)
{
    const td_safetensors_entry wanted = { .name = name }, *key = &wanted;
    const td_safetensors_entry *const *found =
        bsearch(&key, file->by_name, (size_t)file->count, sizeof(void *), compare_names);
    return found != NULL ? *found : NULL;
}

const char *td_safetensors_metadata(const td_safetensors *file, const char *key)
{
    const cJSON *value =
        file->metadata != NULL ? cJSON_GetObjectItemCaseSensitive(file->metadata, key) : NULL;
    return value != NULL ? value->valuestring : NULL;
}
