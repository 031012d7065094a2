/* The list of a folder of images. Users do not include this. */
#pragma once

#include "data/class_names.h"

typedef struct td_folder_list {
    td_class_names classes;
    char **paths; /* of the samples, relative to the root, in order */
    int32_t *labels;
    int64_t count;
    int64_t hidden; /* files and folders that were skipped */
} td_folder_list;

/* Walks a folder. The classes are those of `names` (count 0: the sub-folders, sorted).
 * TD_E_MISMATCH: a sub-folder has no such name. */
td_status td_folder_list_read(const char *root, const char *const *names, int count,
                              td_folder_list *list);
/* Keeps one part of the list: a fraction of each class's images (val), or the others. */
td_status td_folder_list_split(td_folder_list *list, const char *root, double fraction, bool val,
                               uint64_t seed);
void td_folder_list_free(td_folder_list *list);
