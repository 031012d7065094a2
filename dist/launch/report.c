/* A failure on its way from node to coordinator, and as people read it. */
#include "tensor/clock.h"
#include "dist/launch/launcher.h"

#include <stdio.h>
#include <string.h>

void td_failure_pack(const td_worker_failure *f, char *text, size_t size)
{
    snprintf(text, size, "%.6f %d %d %d %ld %d %s\n%s\n%s", td_clock() - f->when, f->rank,
             f->local_rank, f->node, f->pid, f->status, f->host, f->log, f->message);
}

bool td_failure_unpack(const char *text, td_worker_failure *f)
{
    *f = (td_worker_failure){ 0 };
    const char *log = strchr(text, '\n');
    const char *message = log != NULL ? strchr(log + 1, '\n') : NULL;
    double ago;
    if (message == NULL || sscanf(text, "%lf %d %d %d %ld %d %127s", &ago, &f->rank, &f->local_rank,
                                  &f->node, &f->pid, &f->status, f->host) != 7) {
        return false;
    }
    f->when = td_clock() - ago;
    snprintf(f->log, sizeof(f->log), "%.*s", (int)(message - log - 1), log + 1);
    snprintf(f->message, sizeof(f->message), "%s", message + 1);
    return true;
}

void td_failure_text(const td_worker_failure *f, int round, char *text, size_t size)
{
    char end[64];
    td_child_end_text(f->status, end, sizeof(end));
    int length = snprintf(text, size,
                          "rank %d failed first: %s\n  host %s, node %d, local rank %d, pid %ld, "
                          "attempt %d",
                          f->rank, end, f->host, f->node, f->local_rank, f->pid, round);
    if (f->log[0] != '\0') {
        length += snprintf(text + length, size - (size_t)length, "\n  its output: %s", f->log);
    }
    /* Each line of the message goes in by two. */
    for (const char *line = f->message; *line != '\0' && (size_t)length + 4 < size;) {
        int width = (int)strcspn(line, "\n");
        int more = snprintf(text + length, size - (size_t)length, "\n  | %.*s", width, line);
        length = (size_t)(length + more) < size ? length + more : (int)size - 1;
        line += width + (line[width] == '\n');
    }
}
