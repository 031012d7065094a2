/* Serves a running run's page on loopback: a thread answers one browser after the other, and gives
 * none of them more than a few seconds. It takes GET / and nothing else. */
#include "apps/tools/report/live.h"

#include "apps/tools/report/report.h"
#include "dist/trace.h"
#include "tensor/clock.h"
#include "tensor/system/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGE_SECONDS = 30, ANSWER_SECONDS = 5, REQUEST_BYTES = 8192 };

struct report_live {
    int listener, stop[2]; /* a pipe: its end ends the thread */
    pthread_t thread;
    char *folder;
    char *page; /* NULL: none has been made */
    size_t page_bytes;
    double made;
};

/* ---- the page ---- */

/* Makes the page again if it is old. The old one stays if that fails. */
static td_status refresh(report_live *live)
{
    if (live->page != NULL && td_clock() < live->made + PAGE_SECONDS) {
        return TD_OK;
    }
    report_run run = { .path = NULL };
    char *page = NULL;
    size_t bytes = 0;
    td_status status = td_trace_so_far();
    status = status == TD_OK ? report_read(live->folder, &run) : status;
    FILE *out = status == TD_OK ? open_memstream(&page, &bytes) : NULL;
    if (out != NULL) {
        status = report_page(out, &run, 1);
        status = fclose(out) != 0 ? td_fail(TD_E_NOMEM, "no memory for the page") : status;
    }
    report_run_free(&run);
    if (status != TD_OK || page == NULL) {
        free(page);
        return status != TD_OK ? status : td_fail(TD_E_NOMEM, "no memory for the page");
    }
    free(live->page);
    live->page = page;
    live->page_bytes = bytes;
    live->made = td_clock();
    return TD_OK;
}

/* ---- an answer ---- */

/* Waits until fd is ready. false: the run is over, or it is too late. */
static bool live_wait(const report_live *live, int fd, short events, double end)
{
    struct pollfd fds[] = { { .fd = live->stop[0], .events = POLLIN }, { fd, events, 0 } };
    return poll(fds, 2, td_milliseconds_until(end)) > 0 && fds[0].revents == 0;
}

/* Reads to the empty line behind the headers. false: there is none. */
static bool read_request(const report_live *live, int fd, double end, char *request)
{
    size_t size = 0;
    while (size < REQUEST_BYTES - 1 && live_wait(live, fd, POLLIN, end)) {
        ssize_t n = recv(fd, request + size, REQUEST_BYTES - 1 - size, 0);
        if (n <= 0) {
            return false;
        }
        size += (size_t)n;
        request[size] = '\0';
        if (strstr(request, "\r\n\r\n") != NULL) {
            return strlen(request) == size; /* no byte 0 in it */
        }
    }
    return false;
}

/* A page of another site must not read this one under a name of its own that leads here. */
static bool is_loopback_host(const char *request)
{
    const char *line = strcasestr(request, "\r\nHost:");
    const char *host = line != NULL ? line + 7 + strspn(line + 7, " ") : "";
    return strcspn(host, ":\r") == 9 &&
           (strncasecmp(host, "localhost", 9) == 0 || strncmp(host, "127.0.0.1", 9) == 0);
}

static const char *judge(bool whole, const char *request)
{
    return !whole                                       ? "400 Bad Request"
           : strncmp(request, "GET ", 4) != 0           ? "405 Method Not Allowed"
           : !is_loopback_host(request)                 ? "403 Forbidden"
           : strncmp(request, "GET / HTTP/1.", 13) != 0 ? "404 Not Found"
                                                        : "200 OK";
}

static void send_bytes(const report_live *live, int fd, double end, const char *bytes, size_t size)
{
    while (size > 0 && live_wait(live, fd, POLLOUT, end)) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return;
        }
        bytes += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
}

static void answer(report_live *live, int fd)
{
    double end = td_clock() + ANSWER_SECONDS;
    char request[REQUEST_BYTES] = "", head[512];
    const char *outcome = judge(read_request(live, fd, end, request), request);
    const char *body = outcome, *type = "text/plain";
    size_t size = strlen(outcome);
    if (*outcome == '2' && refresh(live) != TD_OK && live->page == NULL) {
        outcome = "503 Service Unavailable"; /* before the run's first row */
        body = td_last_error();
        size = strlen(body);
    } else if (*outcome == '2') {
        body = live->page;
        size = live->page_bytes;
        type = "text/html; charset=utf-8";
    }
    end = td_clock() + ANSWER_SECONDS;
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s"
                          "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
                          "Connection: close\r\n\r\n",
                          outcome, type, size, *outcome == '2' ? "Refresh: 30\r\n" : "");
    send_bytes(live, fd, end, head, (size_t)length);
    send_bytes(live, fd, end, body, size);
    shutdown(fd, SHUT_WR); /* unread bytes at close would take the answer back */
    while (live_wait(live, fd, POLLIN, end) && recv(fd, request, sizeof request, 0) > 0) {
    }
}

static void *serve(void *argument)
{
    report_live *live = argument;
    struct pollfd fds[] = { { live->stop[0], POLLIN, 0 }, { live->listener, POLLIN, 0 } };
    while (poll(fds, 2, -1) < 0 || fds[0].revents == 0) {
        int fd = accept4(live->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            answer(live, fd);
            close(fd);
        } else {
            td_sleep(0.1); /* too many files are open, for example */
        }
    }
    return NULL;
}

/* ---- begin and end ---- */

static void live_free(report_live *live)
{
    const int files[] = { live->listener, live->stop[0], live->stop[1] };
    for (int i = 0; i < 3; i++) {
        if (files[i] >= 0) {
            close(files[i]);
        }
    }
    free(live->folder);
    free(live->page);
    free(live);
}

static td_status listen_on(int port, int *listener)
{
    struct sockaddr_in place = { .sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr = { htonl(INADDR_LOOPBACK) } };
    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int yes = 1;
    TD_CHECK(*listener >= 0 &&
                 setsockopt(*listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                 bind(*listener, (struct sockaddr *)&place, sizeof place) == 0 &&
                 listen(*listener, 8) == 0,
             TD_E_IO, "no page can be served on port %d of 127.0.0.1: %s; give another", port,
             strerror(errno));
    return TD_OK;
}

td_status report_live_open(int port, const char *folder, report_live **result)
{
    *result = NULL;
    report_live *live = calloc(1, sizeof *live);
    TD_CHECK(live != NULL, TD_E_NOMEM, "no memory for a server");
    *live = (report_live){ .listener = -1, .stop = { -1, -1 } };
    live->folder = strdup(folder);
    td_status status = listen_on(port, &live->listener);
    if (status == TD_OK && (live->folder == NULL || pipe2(live->stop, O_CLOEXEC) != 0 ||
                            td_thread_start(&live->thread, serve, live) != 0)) {
        status = td_fail(TD_E_NOMEM, "no thread for a server");
    }
    if (status != TD_OK) {
        live_free(live);
        return status;
    }
    *result = live;
    return TD_OK;
}

void report_live_close(report_live **live)
{
    if (*live != NULL) {
        close((*live)->stop[1]);
        (*live)->stop[1] = -1;
        pthread_join((*live)->thread, NULL);
        live_free(*live);
        *live = NULL;
    }
}
