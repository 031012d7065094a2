/* The list of a folder of images. Users do not include this. */
#ifndef TD_DATA_IMAGES_FOLDER_LIST_H
#define TD_DATA_IMAGES_FOLDER_LIST_H

#include "data/data.h"

typedef struct td_folder_list {
    char **classes;
    int class_count;
    char **paths; /* of the samples, relative to the root, in order */
    int32_t *labels;
    int64_t count;
} td_folder_list;

/* Walks a folder. */
td_status td_folder_list_read(const char *root, td_folder_list *list);
/* Keeps one part of the list: a fraction of each class's images (val), or the others. */
td_status td_folder_list_split(td_folder_list *list, const char *root, double fraction, bool val,
                               uint64_t seed);
void td_folder_list_free(td_folder_list *list);

#endif
