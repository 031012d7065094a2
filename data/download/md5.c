/* MD5 of a file, by libmd. It guards against broken transfers, not against malice. */
#ifdef TD_HAVE_MD

#include "data/download/download.h"

#include <errno.h>
#include <md5.h>
#include <stdio.h>
#include <string.h>

td_status td_file_md5(const char *path, char hex[33])
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return td_fail(TD_E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    MD5_CTX context;
    MD5Init(&context);
    uint8_t bytes[1 << 14];
    for (size_t got; (got = fread(bytes, 1, sizeof bytes, file)) > 0;) {
        MD5Update(&context, bytes, got);
    }
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed) {
        return td_fail(TD_E_IO, "%s: reading failed: %s", path, strerror(errno));
    }
    uint8_t digest[16];
    MD5Final(digest, &context);
    for (int i = 0; i < 16; i++) {
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
    return TD_OK;
}

#else

typedef int td_md5_needs_libmd; /* C wants a file to declare something */

#endif
