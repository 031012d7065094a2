/* The split of a folder's pictures into those for training and those for validation. */
#include "data/images/folder_list.h"
#include "tensor/extend.h"
#include "tensor/system/text.h"

#include <math.h>
#include <stdlib.h>

typedef struct ranked {
    uint64_t hash;
    int64_t sample;
} ranked;

/* A path's place in its class: two Philox words, keyed by the seed and the FNV-1a hash of the path.
 */
static uint64_t hash_path(const char *path, uint64_t seed)
{
    uint32_t word[4];
    td_philox((td_philox_key){ seed, 0x73706c6974 /* "split" in ASCII */ },
              td_hash_text(TD_HASH_BEGIN, path), 0, word);
    return (uint64_t)word[0] << 32 | word[1];
}

static int by_hash(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->hash != y->hash) {
        return x->hash < y->hash ? -1 : 1;
    }
    return (x->sample > y->sample) - (x->sample < y->sample);
}

/* Marks the validation pictures among n of one class, which begin at sample `first`. */
static void mark_class(const td_folder_list *list, int64_t first, int64_t n, double fraction,
                       uint64_t seed, ranked *order, bool *val)
{
    for (int64_t i = 0; i < n; i++) {
        order[i] = (ranked){ hash_path(list->paths[first + i], seed), first + i };
    }
    qsort(order, (size_t)n, sizeof *order, by_hash);
    int64_t count = llround(fraction * (double)n);
    count = count < 1 ? 1 : count > n - 1 ? n - 1 : count;
    for (int64_t i = 0; i < count; i++) {
        val[order[i].sample] = true;
    }
}

/* Removes the samples of the other part. */
static void keep(td_folder_list *list, const bool *val, bool wanted)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < list->count; i++) {
        if (val[i] == wanted) {
            list->paths[kept] = list->paths[i];
            list->labels[kept++] = list->labels[i];
        } else {
            free(list->paths[i]);
        }
    }
    list->count = kept;
}

td_status td_folder_list_split(td_folder_list *list, const char *root, double fraction, bool val,
                               uint64_t seed)
{
    ranked *order = calloc((size_t)list->count, sizeof *order);
    bool *marks = calloc((size_t)list->count, sizeof *marks);
    td_status status = order != NULL && marks != NULL
                           ? TD_OK
                           : td_fail(TD_E_NOMEM, "%s: no memory to split %lld images", root,
                                     (long long)list->count);
    for (int64_t first = 0, end; status == TD_OK && first < list->count; first = end) {
        for (end = first; end < list->count && list->labels[end] == list->labels[first]; end++) {
        }
        if (end - first < 2) {
            status = td_fail(TD_E_FORMAT,
                             "%s/%s: one image; a class needs two to be split into training and "
                             "validation",
                             root, list->classes.name[list->labels[first]]);
        } else {
            mark_class(list, first, end - first, fraction, seed, order, marks);
        }
    }
    if (status == TD_OK) {
        keep(list, marks, val);
    }
    free(order);
    free(marks);
    return status;
}
