/* Files and folders, as far as the apps need them. */
#ifndef APPS_COMMON_FILES_H
#define APPS_COMMON_FILES_H

#include "tandem.h"

/* Makes a folder and those above it, as mkdir -p does. */
td_status make_folders(const char *path);

#endif
