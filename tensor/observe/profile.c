/* The profiler: sums the time of kernels by name and module, and prints a table. */
#include "tensor/observe/profile.h"
#include "tensor/clock.h"

#include "tensor/hooks.h"
#include "tensor/system/number.h"
#include "tensor/observe/watch.h"
#include "tensor/system/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4096, NAME = 80 }; /* rows that can be kept; a hash table */

typedef struct entry {
    td_profile_row row; /* kernel NULL: free */
    char module[NAME];
} entry;

static struct {
    pthread_mutex_t lock; /* for all */
    bool on;
    double began, ended;
    pthread_t owner; /* the thread that started it */
    td_profile_totals totals;
    entry *entries;
    int order[SLOTS]; /* the used ones, once sorted */
    int64_t lost;     /* calls for which there was no room */
} profile = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- counting ---- */

static bool is_entry_of(const entry *e, const td_watched_call *call, const char *module)
{
    return e->row.kernel == call->kernel && e->row.backward == call->backward &&
           strncmp(e->module, module, NAME - 1) == 0;
}

/* The call's row, new if need be; NULL: no room. */
static entry *find_entry(const td_watched_call *call)
{
    const char *module = call->module != NULL ? call->module : "";
    size_t at = td_hash_text(td_hash_text(TD_HASH_BEGIN + call->backward, call->kernel), module);
    for (int tries = 0; tries < SLOTS; tries++, at++) {
        entry *e = &profile.entries[at % SLOTS];
        if (e->row.kernel == NULL) {
            snprintf(e->module, NAME, "%s", module);
            e->row.kernel = call->kernel;
            e->row.module = e->module;
            e->row.backward = call->backward;
            e->row.span = call->span;
            profile.order[profile.totals.rows++] = (int)(at % SLOTS);
            return e;
        }
        if (is_entry_of(e, call, module)) {
            return e;
        }
    }
    return NULL;
}

/* The shortest time that the limits allow: arithmetic and memory may overlap. */
static double least_seconds(td_cost cost)
{
    const td_profile_totals *t = &profile.totals;
    double compute = cost.flops / (cost.dtype == TD_F64 ? t->flops_f64 : t->flops_f32);
    double memory = cost.bytes / t->bytes_per_second;
    return compute > memory ? compute : memory;
}

static void count_call(const td_watched_call *call, void *user)
{
    (void)user;
    double seconds = call->end - call->begin;
    pthread_mutex_lock(&profile.lock);
    bool own = pthread_equal(profile.owner, call->thread) != 0;
    entry *e = find_entry(call);
    if (e != NULL) {
        e->row.calls++;
        e->row.seconds += seconds;
        e->row.flops += call->cost.flops;
        e->row.bytes += call->cost.bytes;
        e->row.least += call->span ? 0.0 : least_seconds(call->cost);
    } else {
        profile.lost++;
    }
    td_profile_totals *t = &profile.totals;
    *(call->span ? &t->spans : own ? &t->kernels : &t->other) += seconds;
    pthread_mutex_unlock(&profile.lock);
}

static void count_step(double begin, double end, void *user)
{
    (void)user;
    pthread_mutex_lock(&profile.lock);
    if (pthread_equal(profile.owner, pthread_self())) {
        profile.totals.steps++;
        profile.totals.step_seconds += end - begin;
    }
    pthread_mutex_unlock(&profile.lock);
}

static td_watcher watcher = { .called = count_call };
static td_step_observer observer = { .ended = count_step };

/* ---- on and off ---- */

td_status td_profile_start(const td_profile_options *options)
{
    td_profile_options o = options != NULL ? *options : (td_profile_options){ .device = TD_CPU };
    td_profile_stop();
    td_limits limits = { o.flops_f32, o.flops_f64, o.bytes };
    if (o.flops_f32 <= 0.0 || o.flops_f64 <= 0.0 || o.bytes <= 0.0) {
        td_limits measured;
        TD_TRY(td_kernels_of(o.device)->measure_limits(o.device, &measured));
        limits.f32 = o.flops_f32 > 0.0 ? o.flops_f32 : measured.f32;
        limits.f64 = o.flops_f64 > 0.0 ? o.flops_f64 : measured.f64;
        limits.memory = o.bytes > 0.0 ? o.bytes : measured.memory;
    }
    entry *entries = calloc(SLOTS, sizeof *entries);
    TD_CHECK(entries != NULL, TD_E_NOMEM, "no memory for a profile");
    free(profile.entries);
    profile.entries = entries;
    profile.lost = 0;
    profile.totals = (td_profile_totals){ .flops_f32 = limits.f32,
                                          .flops_f64 = limits.f64,
                                          .bytes_per_second = limits.memory };
    profile.owner = pthread_self();
    profile.began = td_clock();
    profile.on = true;
    td_watch(&watcher);
    td_observe_steps(&observer);
    return TD_OK;
}

void td_profile_stop(void)
{
    if (profile.on) {
        td_unwatch(&watcher);
        td_ignore_steps(&observer);
        profile.ended = td_clock();
        profile.on = false;
    }
}

/* ---- results ---- */

static int slower_first(const void *a, const void *b)
{
    const td_profile_row *left = &profile.entries[*(const int *)a].row;
    const td_profile_row *right = &profile.entries[*(const int *)b].row;
    return (left->seconds < right->seconds) - (left->seconds > right->seconds);
}

td_profile_totals td_profile_result(void)
{
    pthread_mutex_lock(&profile.lock);
    td_profile_totals *t = &profile.totals;
    t->seconds = (profile.on ? td_clock() : profile.ended) - profile.began;
    if (profile.entries != NULL) {
        qsort(profile.order, (size_t)t->rows, sizeof *profile.order, slower_first);
    }
    td_profile_totals totals = *t;
    pthread_mutex_unlock(&profile.lock);
    return totals;
}

td_profile_row td_profile_get(int row)
{
    TD_REQUIRE(row >= 0 && row < profile.totals.rows, TD_HERE,
               "td_profile_get(%d): there are %d rows", row, profile.totals.rows);
    return profile.entries[profile.order[row]].row;
}

/* ---- the table ---- */

enum { KERNEL_WIDTH = 19, MODULE_WIDTH = 30 };

static void print_rule(FILE *out)
{
    for (int i = 0; i < KERNEL_WIDTH + MODULE_WIDTH + 68; i++) {
        fputc('-', out);
    }
    fputc('\n', out);
}

static double per_step_ms(double seconds, const td_profile_totals *t)
{
    return 1e3 * seconds / (t->steps > 0 ? (double)t->steps : 1.0);
}

static double percent(double part, double whole)
{
    return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

static double rate(double work, double seconds)
{
    return seconds > 0.0 ? 1e-9 * work / seconds : 0.0;
}

static void print_row(FILE *out, const td_profile_row *r, const td_profile_totals *t)
{
    td_fprintf(out, "%-*s %-*.*s %-4s %8lld %9.3f %6.1f%% %9.1f %8.1f %7.0f%%\n", KERNEL_WIDTH,
               r->kernel, MODULE_WIDTH, MODULE_WIDTH, *r->module != '\0' ? r->module : "-",
               r->backward ? "back" : "fwd", (long long)r->calls, per_step_ms(r->seconds, t),
               percent(r->seconds, t->seconds), rate(r->flops, r->seconds),
               rate(r->bytes, r->seconds), percent(r->least, r->seconds));
}

/* A line without work: all but time is blank. */
static void print_time(FILE *out, const char *what, int64_t calls, double seconds,
                       const td_profile_totals *t)
{
    td_fprintf(out, "%-*s %8lld %9.3f %6.1f%%\n", KERNEL_WIDTH + MODULE_WIDTH + 6, what,
               (long long)calls, per_step_ms(seconds, t), percent(seconds, t->seconds));
}

enum { MOST_SUMS = 64 };

typedef struct sum {
    const char *what; /* a pass, or a kernel */
    int64_t calls;
    double seconds;
} sum;

static void add_to(sum *sums, int *count, const char *what, const td_profile_row *row)
{
    int i = 0;
    while (i < *count && strcmp(sums[i].what, what) != 0) {
        i++;
    }
    if (i == MOST_SUMS) {
        return;
    }
    if (i == *count) {
        sums[(*count)++] = (sum){ .what = what };
    }
    sums[i].calls += row->calls;
    sums[i].seconds += row->seconds;
}

static int profile_larger_first(const void *a, const void *b)
{
    double left = ((const sum *)a)->seconds, right = ((const sum *)b)->seconds;
    return (left < right) - (left > right);
}

/* The rows of all modules in one: by pass, and by kernel. */
static void print_sums(FILE *out, const td_profile_totals *t)
{
    sum passes[MOST_SUMS], kernels[MOST_SUMS];
    int pass_count = 0, kernel_count = 0;
    for (int i = 0; i < t->rows; i++) {
        td_profile_row row = td_profile_get(i);
        const char *forward = strcmp(row.module, "optimizer") == 0 ? "optimizer" : "forward";
        if (!row.span) {
            add_to(passes, &pass_count, row.backward ? "backward" : forward, &row);
            add_to(kernels, &kernel_count, row.kernel, &row);
        }
    }
    qsort(passes, (size_t)pass_count, sizeof *passes, profile_larger_first);
    qsort(kernels, (size_t)kernel_count, sizeof *kernels, profile_larger_first);
    for (int i = 0; i < pass_count; i++) {
        print_time(out, passes[i].what, passes[i].calls, passes[i].seconds, t);
    }
    print_rule(out);
    for (int i = 0; i < kernel_count; i++) {
        print_time(out, kernels[i].what, kernels[i].calls, kernels[i].seconds, t);
    }
    print_rule(out);
}

static void print_outside(FILE *out, const td_profile_totals *t)
{
    for (int i = 0; i < t->rows; i++) {
        td_profile_row row = td_profile_get(i);
        if (row.span) {
            print_time(out, row.kernel, row.calls, row.seconds, t);
        }
    }
    double rest = t->seconds - t->kernels - t->spans;
    print_time(out, "rest", t->steps, rest > 0.0 ? rest : 0.0, t);
    print_time(out, "whole", t->steps, t->seconds, t);
    if (t->other > 0.0) {
        print_time(out, "kernels on other threads, meanwhile", 0, t->other, t);
    }
    if (profile.lost > 0) {
        fprintf(out, "%lld calls are not in the table: it has room for %d rows\n",
                (long long)profile.lost, SLOTS);
    }
}

void td_profile_print(FILE *out, int most)
{
    td_profile_totals t = td_profile_result();
    double kernels = 0.0, least = 0.0;
    int64_t calls = 0;
    int shown = 0;
    td_fprintf(out,
               "\nprofile: %lld steps in %.3f s, %.3f ms inside a step; limits: %.0f GFLOP/s f32, "
               "%.0f f64, %.1f GB/s\n",
               (long long)t.steps, t.seconds, per_step_ms(t.step_seconds, &t), 1e-9 * t.flops_f32,
               1e-9 * t.flops_f64, 1e-9 * t.bytes_per_second);
    fprintf(out, "%-*s %-*s %-4s %8s %9s %7s %9s %8s %8s\n", KERNEL_WIDTH, "kernel", MODULE_WIDTH,
            "module", "pass", "calls", "ms/step", "time", "GFLOP/s", "GB/s", "of limit");
    print_rule(out);
    for (int i = 0; i < t.rows; i++) {
        td_profile_row row = td_profile_get(i);
        if (row.span) {
            continue;
        }
        if (most == 0 || shown++ < most) {
            print_row(out, &row, &t);
        }
        calls += row.calls;
        kernels += row.seconds;
        least += row.least;
    }
    print_rule(out);
    print_sums(out, &t);
    print_time(out, "all kernels", calls, kernels, &t);
    td_fprintf(out, "%-*s %8s %9.3f\n", KERNEL_WIDTH + MODULE_WIDTH + 6, "  at the limits", "",
               per_step_ms(least, &t));
    print_outside(out, &t);
    fflush(out);
}
