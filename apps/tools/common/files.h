/* Files and folders, as far as the apps need them. */
#ifndef APPS_TOOLS_FILES_H
#define APPS_TOOLS_FILES_H

#include "tandem.h"

/* Makes a folder and those above it, as mkdir -p does. */
td_status make_folders(const char *path);

/* TD_OK if a file can be made at path: its folder is there and may be written to. Asked before a
 * run, so that hours of training do not end in a checkpoint that has no place. */
td_status check_can_save(const char *path);

#endif
