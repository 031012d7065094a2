/* The list of a folder of pictures: walking it, and remembering it in a file. Users do not include
 * this. */
#ifndef TD_DATA_IMAGES_FOLDER_LIST_H
#define TD_DATA_IMAGES_FOLDER_LIST_H

#include "data/data.h"

/* A sub-folder that was read, and when it was last changed. */
typedef struct td_folder_stamp {
    char *path; /* relative to the root; "" is the root */
    int64_t seconds, nanoseconds;
    uint64_t inode;
} td_folder_stamp;

typedef struct td_folder_list {
    char **classes;
    int class_count;
    char **paths; /* of the samples, relative to the root, in order */
    int32_t *labels;
    int64_t count, capacity;
    td_folder_stamp *folders;
    int64_t folder_count, folder_capacity;
} td_folder_list;

/* Walks a folder. */
td_status td_folder_list_read(const char *root, td_folder_list *list);
/* What the index file remembers, if no folder has changed since; false: it is to be read again. */
bool td_folder_list_recall(const char *root, const char *index, td_folder_list *list);
/* Writes the index file (a temporary one, renamed). */
td_status td_folder_list_remember(const char *root, const char *index, const td_folder_list *list);
/* Keeps one part of the list: a fraction of each class's pictures (val), or the others. */
td_status td_folder_list_split(td_folder_list *list, const char *root, double fraction, bool val,
                               uint64_t seed);
void td_folder_list_free(td_folder_list *list);

/* ---- between the two files ---- */

bool td_folder_list_add_sample(td_folder_list *list, char *path, int32_t label); /* takes path */
bool td_folder_list_add_folder(td_folder_list *list, td_folder_stamp stamp);     /* takes path */
bool td_folder_list_add_class(td_folder_list *list, char *name);                 /* takes name */

#endif
