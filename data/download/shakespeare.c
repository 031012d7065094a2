/* Getting tinyshakespeare. */
#include "data/download/download.h"
#include "tensor/system/folders.h"

#include <strings.h>
#include <unistd.h>

td_status td_shakespeare_download(const char *path, const char *url)
{
    static const char official[] =
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt";
    return td_shakespeare_fetch(path,
                                &(td_download_options){ .url = url != NULL ? url : official,
                                                        .md5 = "6fb458f1232090904fb40fe944165e91",
                                                        .attempts = 5,
                                                        .stall_seconds = 30,
                                                        .pause_seconds = 1 });
}

#if defined(TD_HAVE_CURL) && defined(TD_HAVE_ARCHIVE) && defined(TD_HAVE_MD)

static bool shakespeare_is_there(const char *path, const char *md5, td_status *status)
{
    char own[33];
    bool there = access(path, F_OK) == 0;
    if (there && (*status = td_file_md5(path, own)) == TD_OK && strcasecmp(own, md5) != 0) {
        *status = td_fail(
            TD_E_FORMAT,
            "%s is another text than tinyshakespeare: delete it, or download to another file",
            path);
    }
    return there;
}

td_status td_shakespeare_fetch(const char *path, const td_download_options *options)
{
    td_status status;
    if (shakespeare_is_there(path, options->md5, &status)) {
        return status;
    }
    TD_TRY(td_make_folder_of(path));
    return td_fetch_checked(path, options);
}

#else

td_status td_shakespeare_fetch(const char *path, const td_download_options *options)
{
    TD_CHECK(access(path, F_OK) == 0, TD_E_UNSUPPORTED,
             "this build cannot download (make deps brings what it lacks). Fetch %s by hand to %s",
             options->url, path);
    return TD_OK;
}

#endif
