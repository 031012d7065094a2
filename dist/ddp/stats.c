/* What a step spent on communication, and how much of that was hidden behind forward and backward.
 *
 * Exposed is the time that the optimizer waits: for buckets that are not done when backward ends,
 * and for the broadcast of buffers. If communication and computing share a core, communication also
 * makes forward and backward longer, and that time counts as exposed, too. It is measured in two
 * parts: the computing thread was ready but had no core, while the engine's threads ran; and the
 * computing thread served network interrupts (its only work in the kernel). */
#include "dist/ddp.h"

#include "dist/clock.h"
#include "dist/backend.h"
#include "dist/trace.h"
#include "dist/collectives.h"
#include "tensor/hooks.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- this thread ---- */

static void open_delays(td_ddp_meter *m)
{
    int thread = (int)gettid();
    if (m->thread != thread) {
        if (m->thread != 0 && m->delays >= 0) {
            close(m->delays);
        }
        m->thread = thread;
        m->delays = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    }
}

/* Seconds for which this thread was ready to run but had no core: the second number of schedstat,
 * in nanoseconds. 0 if the kernel has no such file. */
static double delay_of_thread(td_ddp_meter *m)
{
    char text[96];
    open_delays(m);
    ssize_t length = m->delays >= 0 ? pread(m->delays, text, sizeof text - 1, 0) : 0;
    if (length <= 0) {
        return 0.0;
    }
    text[length] = '\0';
    char *second;
    (void)strtoull(text, &second, 10);
    return 1e-9 * (double)strtoull(second, NULL, 10);
}

static double system_of_thread(void)
{
    struct rusage use;
    getrusage(RUSAGE_THREAD, &use);
    return (double)use.ru_stime.tv_sec + 1e-6 * (double)use.ru_stime.tv_usec;
}

void td_ddp_free_meter(td_ddp_state *s)
{
    if (s->meter.thread != 0 && s->meter.delays >= 0) {
        close(s->meter.delays);
    }
}

/* ---- in the order of a step ---- */

void td_ddp_begin_buffers(td_ddp_state *s)
{
    s->meter.buffers_begin = td_clock();
}

void td_ddp_begin_forward(td_ddp_state *s)
{
    td_ddp_meter *m = &s->meter;
    m->delay = delay_of_thread(m);
    m->system = system_of_thread();
    m->engine = td_group_cpu_seconds(s->group);
    m->forward_begin = td_clock();
    m->buffers = m->forward_begin - m->buffers_begin;
    m->launches = m->packed = m->packed_late = 0.0;
    td_trace_begin("forward");
}

void td_ddp_end_forward(td_ddp_state *s)
{
    td_trace_end();
    s->meter.forward_end = td_clock();
}

/* In backward: the thread's CPU time, because time without a core counts as lost already. After
 * backward, where all time is waiting: the clock. */
double td_ddp_mark(const td_ddp_state *s)
{
    struct timespec t;
    if (!s->active || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) {
        return td_clock();
    }
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void td_ddp_note_launch(td_ddp_state *s, double begin)
{
    if (s->active) { /* after backward it is part of `waiting` */
        s->meter.launches += td_ddp_mark(s) - begin;
    }
}

void td_ddp_note_packing(td_ddp_state *s, double begin)
{
    *(s->active ? &s->meter.packed : &s->meter.packed_late) += td_ddp_mark(s) - begin;
}

void td_ddp_begin_wait(td_ddp_state *s)
{
    td_ddp_meter *m = &s->meter;
    m->wait_begin = td_clock();
    double delay = delay_of_thread(m) - m->delay;
    double engine = td_group_cpu_seconds(s->group) - m->engine;
    double system = system_of_thread() - m->system;
    /* At most the engine's CPU time: the rest of the delay was taken by other programs. */
    m->lost = (delay < engine ? delay : engine) + system;
    s->stats.communication = 0.0;
}

void td_ddp_keep_stats(td_ddp_state *s)
{
    td_ddp_stats *f = &s->stats;
    const td_ddp_meter *m = &s->meter;
    double end = td_clock();
    f->steps++;
    if (s->join.ran_out) {
        return; /* this step had no forward or backward on this rank */
    }
    f->forward = m->forward_end - m->forward_begin;
    f->backward = m->wait_begin - m->forward_end;
    f->cpu = td_group_cpu_seconds(s->group) - m->engine;
    f->lost = m->lost;
    f->communication += m->buffers;
    f->waiting = m->buffers + end - m->wait_begin - m->packed_late;
    f->hooks = m->launches - m->packed;
    f->packing = m->packed + m->packed_late;
    f->exposed = f->waiting + f->hooks + f->packing + f->lost;
    double share = f->communication > 0.0 ? f->exposed / f->communication : 0.0;
    f->overlap = share < 1.0 ? 1.0 - share : 0.0;
    if (m->forward_end > 0.0) {
        td_trace_span("backward", m->forward_end, m->wait_begin);
    }
    td_tell_span("wait for buckets", m->wait_begin, end);
}

/* ---- for the user ---- */

td_ddp_stats td_ddp_last_stats(const td_module *ddp)
{
    return td_ddp_state_of(ddp)->stats;
}

void td_ddp_print_stats(const td_module *ddp, FILE *out)
{
    const td_ddp_state *s = td_ddp_state_of(ddp);
    const td_ddp_stats *f = &s->stats;
    fprintf(out, "DDP, rank %d of %d (%s): %d buckets%s, MiB:", s->rank, s->world,
            td_group_backend(s->group), f->buckets, f->rebuilt ? " (rebuilt by ready order)" : "");
    int shown = (int)(sizeof f->bucket_bytes / sizeof *f->bucket_bytes);
    for (int i = 0; i < f->buckets && i < shown; i++) {
        fprintf(out, " %.2f", (double)f->bucket_bytes[i] / (1 << 20));
    }
    fprintf(out,
            "%s\nstep %lld: forward %.2f ms, backward %.2f ms, communication %.2f ms; the step is "
            "%.2f ms longer for it (overlap %.0f %%):\n  waiting %.2f ms, hooks %.2f ms, packing "
            "%.2f ms, lost by forward and backward %.2f ms; CPU of communication %.2f ms\n",
            f->buckets > shown ? " ..." : "", (long long)f->steps, f->forward * 1e3,
            f->backward * 1e3, f->communication * 1e3, f->exposed * 1e3, f->overlap * 100.0,
            f->waiting * 1e3, f->hooks * 1e3, f->packing * 1e3, f->lost * 1e3, f->cpu * 1e3);
}
