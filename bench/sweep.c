/* Measures two sides in turns over many shapes, and prints a sorted table. */
#include "bench/sweep.h"

#include "bench/memory.h"
#include "bench/peer.h"

#include <math.h>
#include <unistd.h>

enum { TURNS = 3, PAUSE_US = 500 };

double sweep_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / (double)((uint64_t)1 << 53);
}

int64_t sweep_pick(uint64_t *state, int64_t low, int64_t high)
{
    double value = (double)low * pow((double)(high + 1) / (double)low, sweep_random(state));
    return (int64_t)value < high ? (int64_t)value : high;
}

float *sweep_make(int64_t count, uint64_t *state)
{
    float *p = bench_memory((size_t)count * sizeof *p);
    if (!p) {
        fprintf(stderr, "no memory for %lld numbers\n", (long long)count);
        exit(1);
    }
    for (int64_t i = 0; i < count; i++) {
        p[i] = (float)(2 * sweep_random(state) - 1);
    }
    return p;
}

static void run_peer(void *user)
{
    onednn_run(user);
}

static void run_peer_step(void *user)
{
    onednn_run_step(user);
}

static double best_of_turn(double best, double ms, void (*run)(void *user), void *user)
{
    double start = bench_now_ms(), begin, time;
    do {
        begin = bench_now_ms();
        run(user);
        time = bench_now_ms() - begin;
        best = time < best ? time : best;
    } while (begin + time - start < ms);
    return best;
}

void sweep_measure(sweep_row *row, double ms, void (*run)(void *user), void *user, onednn *peer)
{
    double ours = INFINITY, theirs = INFINITY, step = INFINITY;
    for (int turn = 0; turn < TURNS; turn++) {
        usleep(PAUSE_US); /* until the other side's threads sleep */
        ours = best_of_turn(ours, ms / TURNS, run, user);
        if (peer) {
            usleep(PAUSE_US);
            theirs = best_of_turn(theirs, ms / TURNS, run_peer, peer);
        }
        if (peer && onednn_converts(peer)) {
            usleep(PAUSE_US);
            step = best_of_turn(step, ms / TURNS, run_peer_step, peer);
        }
    }
    row->ours_ms = ours;
    row->peer_ms = peer ? theirs : 0;
    row->step_ms = peer && onednn_converts(peer) ? step : row->peer_ms;
}

static double ratio(const sweep_row *row)
{
    return row->peer_ms / row->ours_ms;
}

static double step_ratio(const sweep_row *row)
{
    return row->step_ms / row->ours_ms;
}

static int by_ratio(const void *a, const void *b)
{
    double x = ratio(a), y = ratio(b);
    return (x > y) - (x < y);
}

static int by_step_ratio(const void *a, const void *b)
{
    double x = step_ratio(a), y = step_ratio(b);
    return (x > y) - (x < y);
}

/* Sorts the rows; those without a peer come first. */
static void summarize(sweep_row *rows, int count, const char *beside,
                      double (*of)(const sweep_row *row), int (*order)(const void *, const void *))
{
    int first = 0, slow = 0;
    qsort(rows, (size_t)count, sizeof *rows, order);
    for (int i = 0; i < count; i++) {
        first += rows[i].peer_ms <= 0;
        slow += rows[i].peer_ms > 0 && of(&rows[i]) < 0.8;
    }
    if (first < count) {
        printf("%s: worst %.2f, median %.2f, %d under 0.8\n", beside, of(&rows[first]),
               of(&rows[first + (count - first) / 2]), slow);
    }
}

/* All rows' times that have a peer, each as often as it occurs. */
static void weigh(const sweep_row *rows, int count)
{
    double ours = 0, theirs = 0, step = 0;
    for (int i = 0; i < count; i++) {
        bool both = rows[i].peer_ms > 0;
        ours += both ? rows[i].count * rows[i].ours_ms : 0;
        theirs += both ? rows[i].count * rows[i].peer_ms : 0;
        step += both ? rows[i].count * rows[i].step_ms : 0;
    }
    if (ours > 0) {
        printf("sum of the times: ours %.1f ms, oneDNN's %.2f of it, with conversions %.2f\n", ours,
               theirs / ours, step / ours);
    }
}

bool sweep_report(sweep_row *rows, int count, double limit)
{
    int wrong = 0, converting = 0;
    qsort(rows, (size_t)count, sizeof *rows, by_ratio);
    printf("%-64s %9s %8s %9s %6s %6s %8s\n", "", "ours ms", "GFLOP/s", "oneDNN ms", "ratio",
           "step", "error");
    for (int i = 0; i < count; i++) {
        const sweep_row *r = &rows[i];
        printf("%-64s %9.4f %8.1f %9.4f %6.2f %6.2f %8.1e%s\n", r->name, r->ours_ms,
               r->flops / r->ours_ms * 1e-6, r->peer_ms, ratio(r), step_ratio(r), r->error,
               r->error <= limit ? "" : " WRONG");
        wrong += !(r->error <= limit);
        converting += r->step_ms != r->peer_ms;
    }
    printf("%d measurements, %d wrong\n", count, wrong);
    if (converting > 0) {
        summarize(rows, count, "against oneDNN with its conversions of the weights in a step",
                  step_ratio, by_step_ratio);
    }
    summarize(rows, count, "against oneDNN", ratio, by_ratio);
    weigh(rows, count);
    return wrong == 0;
}
