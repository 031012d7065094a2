/* What an app says about its pictures. */
#ifndef APPS_TOOLS_PICTURES_H
#define APPS_TOOLS_PICTURES_H

#include "tandem.h"

/* For a folder of pictures with skip_bad, at the end: how many could not be read and were replaced
 * by others, in all ranks together, on rank 0's stdout; and each of them once, with its path and
 * the reason, on the stderr of the first rank that met it. Prints nothing where all were good. All
 * ranks call it. */
td_status pictures_report_bad(const td_dataset *folder);

#endif
