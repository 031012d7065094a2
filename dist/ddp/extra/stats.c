/* What a step spent on communication, and how much of that was hidden behind forward and backward.
 *
 * Exposed is the time that the optimizer waits: for buckets that are not done when backward ends,
 * and for the broadcast of buffers. If communication and computing share a core, communication also
 * makes forward and backward longer, and that time counts as exposed, too. It is measured in two
 * parts: the computing thread was ready but had no core, while the engine's threads ran; and the
 * computing thread served network interrupts (its only work in the kernel). */
#include "dist/ddp/extra.h"

#include "dist/comm/engine.h"
#include "dist/comm/process.h"
#include "tensor/clock.h"
#include "dist/comm/collectives.h"
#include "dist/ddp/extra/parts.h"
#include "nn/internal.h"
#include "tensor/hooks.h"
#include "tensor/system/number.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Measurements of the current step, in seconds; times of day on CLOCK_MONOTONIC. */
typedef struct meter {
    double begin, forward_begin, forward_end, wait_begin;
    double lost;             /* what communication took from forward and backward */
    double launches, packed; /* in backward: launching units, and the codec as a part of that */
    double packed_late;      /* the codec after backward */
    double communication;    /* of the units that were waited for */
    /* At the beginning of forward: */
    double delay;  /* this thread's time without a core */
    double system; /* this thread's time in the kernel */
    double engine; /* CPU time of communication */
    int delays;    /* the thread's schedstat file */
    int thread;    /* the thread whose file is open; 0: none */
} meter;

/* Now running. */
typedef struct running {
    double launch, codec; /* td_clock or the thread's CPU time: `mark` */
    const td_work *work;  /* that is waited for */
} running;

typedef struct stats {
    td_ddp_part part; /* first */
    meter m;
    running now;
    td_ddp_stats last;
} stats;

/* ---- this thread ---- */

static void open_delays(meter *m)
{
    int thread = (int)gettid();
    if (m->thread != thread) {
        td_close_fd(m->delays);
        m->thread = thread;
        m->delays = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    }
}

/* Seconds for which this thread was ready to run but had no core: the second number of schedstat,
 * in nanoseconds. 0 if the kernel has no such file. */
static double delay_of_thread(meter *m)
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

/* ---- in the order of a step ---- */

static void begin_model(stats *x, const td_ddp_state *s)
{
    meter *m = &x->m;
    m->delay = delay_of_thread(m);
    m->system = system_of_thread();
    m->engine = td_groups_cpu_seconds(s->groups, TD_DDP_GROUPS);
    m->forward_begin = td_clock();
    m->launches = m->packed = m->packed_late = 0.0;
}

/* In backward: the thread's CPU time, because time without a core counts as lost already. After
 * backward, where all time is waiting: the clock. */
static double mark(const td_ddp_state *s)
{
    struct timespec t;
    if (!s->reducer.active || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) {
        return td_clock();
    }
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void begin_wait(stats *x, const td_ddp_state *s)
{
    meter *m = &x->m;
    m->wait_begin = td_clock();
    double delay = delay_of_thread(m) - m->delay;
    double engine = td_groups_cpu_seconds(s->groups, TD_DDP_GROUPS) - m->engine;
    double system = system_of_thread() - m->system;
    /* At most the engine's CPU time: the rest of the delay was taken by other programs. */
    m->lost = (delay < engine ? delay : engine) + system;
    m->communication = 0.0;
}

/* The times are still those of this work: its handle serves the group's next collective. */
static void end_wait_for(stats *x, const td_ddp_unit *u)
{
    double queued, begun, ended;
    td_work_times(x->now.work, &queued, &begun, &ended);
    if (ended == 0.0) { /* on a GPU, whose end nobody has seen */
        ended = td_clock();
    }
    x->m.communication += ended - begun;
    td_tell_part(u->name, begun, ended, td_unit_bytes(u));
}

static void end_step(stats *x, const td_ddp_state *s)
{
    td_ddp_stats *f = &x->last;
    const meter *m = &x->m;
    double end = td_clock(), buffers = m->forward_begin - m->begin;
    f->steps++;
    f->communication = m->communication;
    if (s->reducer.ready_count == 0) {
        return; /* this step had no backward on this rank */
    }
    f->forward = m->forward_end - m->forward_begin;
    f->backward = m->wait_begin - m->forward_end;
    f->cpu = td_groups_cpu_seconds(s->groups, TD_DDP_GROUPS) - m->engine;
    f->lost = m->lost;
    f->communication += buffers;
    f->waiting = buffers + end - m->wait_begin - m->packed_late;
    f->hooks = m->launches - m->packed;
    f->packing = m->packed + m->packed_late;
    f->exposed = f->waiting + f->hooks + f->packing + f->lost;
    double share = f->communication > 0.0 ? f->exposed / f->communication : 0.0;
    f->overlap = share < 1.0 ? 1.0 - share : 0.0;
    if (m->forward_end > 0.0) {
        td_tell_part("backward", m->forward_end, m->wait_begin, 0);
    }
    td_tell_span("wait for buckets", m->wait_begin, end);
}

static td_status stats_on(td_ddp_part *part, td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit)
{
    stats *x = (stats *)part;
    switch (event) {
    case TD_DDP_FORWARD:
        x->m.begin = td_clock();
        break;
    case TD_DDP_MODEL:
        begin_model(x, s);
        break;
    case TD_DDP_MODEL_DONE:
        x->m.forward_end = td_clock();
        td_tell_part("forward", x->m.forward_begin, x->m.forward_end, 0);
        break;
    case TD_DDP_LAUNCH:
        x->now.launch = mark(s);
        break;
    case TD_DDP_LAUNCHED:
        /* After backward it is part of `waiting`. */
        x->m.launches += s->reducer.active ? mark(s) - x->now.launch : 0.0;
        break;
    case TD_DDP_CODEC:
        x->now.codec = mark(s);
        break;
    case TD_DDP_CODEC_DONE:
        *(s->reducer.active ? &x->m.packed : &x->m.packed_late) += mark(s) - x->now.codec;
        break;
    case TD_DDP_FINISH:
        begin_wait(x, s);
        break;
    case TD_DDP_WAIT:
        x->now.work = unit->work;
        break;
    case TD_DDP_WAITED:
        end_wait_for(x, unit);
        break;
    case TD_DDP_REDUCED:
        end_step(x, s);
        break;
    default:
        break;
    }
    return TD_OK;
}

static void free_stats(td_ddp_part *part)
{
    td_close_fd(((stats *)part)->m.delays);
    free(part);
}

td_status td_ddp_stats_open(td_ddp_state *s)
{
    stats *x = calloc(1, sizeof *x);
    TD_CHECK(x != NULL, TD_E_NOMEM, "td_ddp: no memory for statistics");
    *x = (stats){ .part = { .on = stats_on, .free = free_stats }, .m = { .delays = -1 } };
    td_ddp_add_part(s, &x->part);
    return TD_OK;
}

/* ---- for the user ---- */

td_ddp_stats td_ddp_last_stats(const td_module *net)
{
    const td_ddp_state *s = td_ddp_state_of(net);
    const td_ddp_units *units = &s->units;
    td_ddp_stats f = ((stats *)td_ddp_find_part(s, stats_on))->last;
    int shown = (int)(sizeof f.bucket_bytes / sizeof *f.bucket_bytes);
    f.buckets = units->count;
    f.rebuilt = units->rebuilt;
    for (int i = 0; i < units->count && i < shown; i++) {
        f.bucket_bytes[i] = td_unit_bytes(&units->list[i]);
    }
    return f;
}

void td_ddp_print_stats(const td_module *net, FILE *out)
{
    td_group *group = td_ddp_state_of(net)->group;
    td_ddp_stats last = td_ddp_last_stats(net), *f = &last;
    fprintf(out, "DDP, rank %d of %d (%s): %d buckets%s, MiB:", td_group_rank(group),
            td_group_size(group), td_group_backend(group), f->buckets,
            f->rebuilt ? " (rebuilt by ready order)" : "");
    int shown = (int)(sizeof f->bucket_bytes / sizeof *f->bucket_bytes);
    for (int i = 0; i < f->buckets && i < shown; i++) {
        td_fprintf(out, " %.2f", (double)f->bucket_bytes[i] / (1 << 20));
    }
    if (td_node_of(net)->staging != NULL) { /* no td_forward is a step's */
        td_fprintf(out, "%s\nstep %lld: communication %.2f ms\n", f->buckets > shown ? " ..." : "",
                   (long long)f->steps, f->communication * 1e3);
        return;
    }
    td_fprintf(
        out,
        "%s\nstep %lld: forward %.2f ms, backward %.2f ms, communication %.2f ms; the step is "
        "%.2f ms longer for it (overlap %.0f %%):\n  waiting %.2f ms, hooks %.2f ms, packing "
        "%.2f ms, lost by forward and backward %.2f ms; CPU of communication %.2f ms\n",
        f->buckets > shown ? " ..." : "", (long long)f->steps, f->forward * 1e3, f->backward * 1e3,
        f->communication * 1e3, f->exposed * 1e3, f->overlap * 100.0, f->waiting * 1e3,
        f->hooks * 1e3, f->packing * 1e3, f->lost * 1e3, f->cpu * 1e3);
}
