/* One file over HTTP, by libcurl. */
#ifdef TD_HAVE_CURL

#include "data/download/download.h"
#include "tensor/clock.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

typedef struct transfer {
    const char *url, *path;
    FILE *file;
    int64_t start; /* bytes in the file when this attempt began */
    int64_t have;  /* bytes in it now */
    int64_t most;
    int write_error; /* errno of a failed write; 0 */
    bool too_long;
} transfer;

static size_t on_data(char *bytes, size_t one, size_t count, void *user)
{
    (void)one; /* is 1 */
    transfer *t = user;
    if (t->have + (int64_t)count > t->most) {
        t->too_long = true;
        return 0;
    }
    errno = 0;
    if (fwrite(bytes, 1, count, t->file) != count) {
        t->write_error = errno;
        return 0;
    }
    t->have += (int64_t)count;
    return count;
}

static void start_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* Plain web addresses only, also after a redirect: no file:, no ftp:. */
static void set_protocols(CURL *curl)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

static void set_options(CURL *curl, transfer *t, int stall_seconds, char *error)
{
    curl_easy_setopt(curl, CURLOPT_URL, t->url);
    set_protocols(curl);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 8L);
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)stall_seconds);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "tandem");
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, isatty(STDERR_FILENO) ? 0L : 1L); /* its own meter */
    curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)t->start);
}

/* One attempt, from where the file ends. */
static CURLcode attempt(CURL *curl, transfer *t, int stall_seconds, char *error)
{
    t->start = t->have;
    error[0] = '\0';
    set_options(curl, t, stall_seconds, error);
    CURLcode code = curl_easy_perform(curl);
    if (fflush(t->file) != 0 && t->write_error == 0) {
        t->write_error = errno;
    }
    if (error[0] == '\0') {
        strncpy(error, curl_easy_strerror(code), CURL_ERROR_SIZE - 1);
    }
    return code;
}

/* The number of the server's answer, if it was not one of success; otherwise 0. */
static long refusal(CURL *curl, CURLcode code)
{
    long answer = 0;
    if (code == CURLE_HTTP_RETURNED_ERROR) {
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer);
    }
    return answer;
}

/* Whether trying again can help. */
static bool passes(CURL *curl, CURLcode code)
{
    static const CURLcode passing[] = { CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT,
                                        CURLE_PARTIAL_FILE,         CURLE_OPERATION_TIMEDOUT,
                                        CURLE_GOT_NOTHING,          CURLE_SEND_ERROR,
                                        CURLE_RECV_ERROR,           CURLE_HTTP2,
                                        CURLE_HTTP2_STREAM,         CURLE_SSL_CONNECT_ERROR };
    long answer = refusal(curl, code);
    bool found = answer >= 500 || answer == 408 || answer == 429;
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        found = found || code == passing[i];
    }
    return found;
}

static td_status file_failure(const transfer *t)
{
    TD_CHECK(!t->too_long, TD_E_FORMAT,
             "%s gives more than the %lld bytes that can be right: check the address", t->url,
             (long long)t->most);
    return td_fail(TD_E_IO,
                   "%s: writing failed: %s. Free some space or take another folder, and start "
                   "again: it goes on where it stopped",
                   t->path, strerror(t->write_error));
}

static td_status transfer_run(CURL *curl, transfer *t, const td_download_options *options,
                              bool *resumed)
{
    char error[CURL_ERROR_SIZE];
    double pause_seconds = options->pause_seconds;
    for (int tries = 1;; tries++) {
        CURLcode code = attempt(curl, t, options->stall_seconds, error);
        if (t->too_long || t->write_error != 0) {
            return file_failure(t);
        }
        bool complete = t->start > 0 && refusal(curl, code) == 416; /* nothing after what is here */
        if (code == CURLE_OK || complete) {
            return TD_OK;
        }
        if (code == CURLE_RANGE_ERROR && t->have > 0) {
            if (ftruncate(fileno(t->file), 0) != 0) { /* the server can only send everything */
                return td_fail(TD_E_IO, "%s: cannot be emptied: %s", t->path, strerror(errno));
            }
            t->have = 0;
            *resumed = false;
            continue;
        }
        TD_CHECK(
            tries < options->attempts && passes(curl, code), TD_E_NETWORK,
            "%s: %s (attempt %d). Try again later: it goes on after the %.1f MiB that are in %s",
            t->url, error, tries, (double)t->have / 0x1p20, t->path);
        td_sleep(pause_seconds);
        pause_seconds *= 2;
    }
}

td_status td_transfer(const char *path, int64_t most, const td_download_options *options,
                      bool *resumed)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_curl);
    transfer t = { .url = options->url, .path = path, .most = most };
    t.file = fopen(path, "ab");
    if (t.file == NULL || fseeko(t.file, 0, SEEK_END) != 0) {
        td_fail(TD_E_IO, "%s: cannot be written: %s", path, strerror(errno));
        if (t.file != NULL) {
            fclose(t.file);
        }
        return TD_E_IO;
    }
    t.have = ftello(t.file);
    *resumed = t.have > 0;
    CURL *curl = curl_easy_init();
    td_status status = curl != NULL ? transfer_run(curl, &t, options, resumed)
                                    : td_fail(TD_E_NOMEM, "libcurl: no memory");
    curl_easy_cleanup(curl);
    if (fclose(t.file) != 0 && status == TD_OK) {
        t.write_error = errno;
        status = file_failure(&t);
    }
    return status;
}

#else

typedef int td_transfer_needs_libcurl; /* C wants a file to declare something */

#endif
