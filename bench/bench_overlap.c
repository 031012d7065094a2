/* How much of DDP's communication backward hides: one rank, of those that RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT tell of, trains as bench_step does. Steps with and without
 * communication (td_ddp_no_sync_begin) take turns; rank 0 says how much longer those with it take,
 * beside what DDP's own figures say. bench/overlap.sh runs it across a wire.
 *
 * usage: bench_overlap [batch] [turns] [MiB a bucket] [none|bf16|fp16|powersgd] [trace file] */
#include "bench/job.h"
#include "bench/peer.h"
#include "dist/ddp/codec.h"
#include "dist/ddp/extra.h"
#include "dist/trace.h"

#include <string.h>

enum { MOST_TURNS = 1000, WARM = 2, EACH = 2 };

/* Milliseconds of each step, and of DDP's figures for those with communication. */
typedef struct samples {
    double with[MOST_TURNS * EACH], without[MOST_TURNS * EACH];
    double communication[MOST_TURNS * EACH], exposed[MOST_TURNS * EACH];
    double lost[MOST_TURNS * EACH], cpu[MOST_TURNS * EACH];
    int count;
} samples;

static int fail(void)
{
    fprintf(stderr, "bench_overlap: %s\n", td_last_error());
    return 1;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The mean of the middle half: what other programs disturb counts for little, and figures that the
 * kernel counts in ticks still come out between them. */
static double middle(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    double sum = 0;
    for (int i = count / 4; i < count - count / 4; i++) {
        sum += values[i];
    }
    return sum / (count - 2 * (count / 4));
}

/* All ranks begin together. */
static double timed_step(job *j, bool with)
{
    if (td_barrier(NULL) != TD_OK) {
        exit(fail());
    }
    double begin = bench_now_ms();
    if (!with) {
        td_ddp_no_sync_begin(j->net);
    }
    train_step(j);
    if (!with) {
        td_ddp_no_sync_end(j->net);
    }
    return bench_now_ms() - begin;
}

static void take_turns(job *j, int turns, samples *s)
{
    for (int turn = 0; turn < turns; turn++) {
        for (int i = 0; i < EACH; i++) {
            s->with[s->count + i] = timed_step(j, true);
            td_ddp_stats f = td_ddp_last_stats(j->net);
            s->communication[s->count + i] = f.communication * 1e3;
            s->exposed[s->count + i] = f.exposed * 1e3;
            s->lost[s->count + i] = f.lost * 1e3;
            s->cpu[s->count + i] = f.cpu * 1e3;
        }
        for (int i = 0; i < EACH; i++) {
            s->without[s->count + i] = timed_step(j, false);
        }
        s->count += EACH;
    }
}

static void report(samples *s)
{
    double with = middle(s->with, s->count), without = middle(s->without, s->count);
    double communication = middle(s->communication, s->count);
    double exposed = middle(s->exposed, s->count), longer = with - without;
    printf("step with communication %.1f ms, without %.1f ms: %.1f ms longer\n", with, without,
           longer);
    printf("DDP's figures: communication %.1f ms, %.1f ms exposed (%.1f ms lost by computing), CPU "
           "%.1f ms\n",
           communication, exposed, middle(s->lost, s->count), middle(s->cpu, s->count));
    printf("hidden %.1f %%, by DDP's figures %.1f %%; exposed/longer %.2f\n",
           100 * (1 - longer / communication), 100 * (1 - exposed / communication),
           exposed / longer);
}

int main(int argc, char **argv)
{
    static samples s;
    int64_t batch = argc > 1 ? strtol(argv[1], NULL, 10) : 256;
    int turns = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5;
    td_ddp_options options = { .bucket_cap_mb = argc > 3 ? strtod(argv[3], NULL) : 0.0 };
    const char *hook = argc > 4 && strcmp(argv[4], "none") != 0 ? argv[4] : "";
    options.codec = strcmp(hook, "powersgd") == 0 ? td_powersgd(.start = 2) : NULL;
    options.comm_hook = options.codec == NULL && *hook != '\0' ? hook : NULL;
    if (batch < 1 || turns < 1 || turns > MOST_TURNS) {
        fprintf(stderr, "usage: bench_overlap [batch] [turns] [MiB] [hook] [trace]\n");
        return 2;
    }
    job j = { .net = NULL };
    if (td_set_threads(TD_CPU, 1) != TD_OK || td_dist_init() != TD_OK ||
        !open_job(&j, "resnet18", TD_STEM_IMAGENET, 10, 32, batch, TD_F32)) {
        return fail();
    }
    options.model = j.net;
    j.net = td_ddp_at(options, TD_HERE);
    if (j.net == NULL) {
        return fail();
    }
    open_optim(&j);
    for (int i = 0; i < WARM; i++) {
        timed_step(&j, true);
        timed_step(&j, false);
    }
    if (td_trace_open(argc > 5 ? argv[5] : NULL) != TD_OK) {
        return fail();
    }
    take_turns(&j, turns, &s);
    if (td_trace_close() != TD_OK) {
        return fail();
    }
    if (td_dist_rank() == 0) {
        td_ddp_print_stats(j.net, stdout);
        report(&s);
    }
    close_job(&j);
    td_dist_destroy();
    return 0;
}
