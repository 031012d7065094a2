/* Making folders, and paths that do not depend on the current one. */
#pragma once

#include "tensor/error.h"

#include <stdbool.h>

/* Makes a folder and those above it, where they are missing. TD_E_ARG: the path is too long;
 * TD_E_IO: it cannot be made, or something else is in its place. */
td_status td_make_folders(const char *path);
/* The same with the folder that a file lies in. */
td_status td_make_folder_of(const char *file);

/* Where a file is that comes with tandem: PREFIX/share/tandem/NAME, or SOURCE in the source's
 * folder, whichever the program or libtandem.so is in. false: in neither. */
enum { TD_SHARED_PATH = 4096 };
bool td_shared_file(const char *name, const char *source, char path[TD_SHARED_PATH]);

/* The path, to be freed, that a relative path means now: the program may change its folder later.
 * NULL with errno. */
char *td_absolute_path(const char *path);
