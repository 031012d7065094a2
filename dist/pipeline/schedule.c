/* One generator for all schedules. Each rank first runs some forwards (the warm-up), then in turns
 * one forward and one backward, then the backwards that are left:
 *
 *   GPipe         warm-up: all forwards (Huang et al. 2019)
 *   1F1B          as many as there are ranks behind this one (PipeDream-flush, Narayanan et al.
 *                 2021)
 *   interleaved   the same over several stages a rank: in groups of `ranks` micro-batches, in each
 *                 group stage after stage (Narayanan et al. 2021)
 *   ZB-H1         1F1B with backward in two halves. Weights' gradients wait, and fill what would
 *                 be idle time at the end (Qi et al. 2023) */
#include "dist/pipeline/schedule.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

td_status td_plan_read(const char *text, int ranks, int micro, td_plan *plan)
{
    static const char INTERLEAVED[] = "interleaved:";
    text = text != NULL ? text : "1f1b";
    *plan = (td_plan){ .kind = TD_PLAN_1F1B, .ranks = ranks, .micro = micro, .chunks = 1 };
    int64_t chunks = 1;
    if (strcmp(text, "gpipe") == 0) {
        plan->kind = TD_PLAN_GPIPE;
    } else if (strcmp(text, "zb") == 0) {
        plan->kind = TD_PLAN_ZB;
    } else if (strncmp(text, INTERLEAVED, strlen(INTERLEAVED)) == 0) {
        char *end;
        chunks = strtol(text + strlen(INTERLEAVED), &end, 10);
        chunks = *end == '\0' ? chunks : 0;
    } else if (strcmp(text, "1f1b") != 0) {
        chunks = 0;
    }
    TD_CHECK(chunks >= 1 && chunks <= 64, TD_E_ARG,
             "there is no schedule '%s': there are gpipe, 1f1b, zb, and interleaved:N "
             "with N stages a rank, at most 64",
             text);
    plan->chunks = (int)chunks;
    return td_plan_check_micro(plan, micro);
}

td_status td_plan_check_micro(const td_plan *plan, int micro)
{
    int ranks = plan->ranks;
    TD_CHECK(micro >= 1 && micro <= 9999, TD_E_ARG,
             "a step has %d micro-batches: 1 to 9999 are possible", micro);
    return plan->chunks == 1 || micro % ranks == 0
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "schedule 'interleaved:%d': %d micro-batches are no multiple of %d ranks; "
                         "take %d, or 1f1b",
                         plan->chunks, micro, ranks, (micro + ranks - 1) / ranks * ranks);
}

int td_plan_count(const td_plan *plan)
{
    return plan->micro * plan->chunks * (plan->kind == TD_PLAN_ZB ? 3 : 2);
}

/* The k-th forward or backward of a rank: groups of micro-batches, in each group chunk after chunk,
 * in backward the last chunk first. */
static td_action plan_pair(const td_plan *plan, int k, char kind)
{
    int width = plan->chunks > 1 ? plan->ranks : plan->micro;
    int group = k / (width * plan->chunks), rest = k % (width * plan->chunks);
    int chunk = rest / width;
    return (td_action){ .kind = kind,
                        .chunk = kind == 'F' ? chunk : plan->chunks - 1 - chunk,
                        .micro = group * width + rest % width };
}

/* Forwards before the first backward. */
static int plan_warm_up(const td_plan *plan, int rank)
{
    int all = plan->micro * plan->chunks, behind = plan->ranks - rank - 1;
    int warm = plan->chunks > 1 ? 2 * behind + (plan->chunks - 1) * plan->ranks : behind;
    return plan->kind == TD_PLAN_GPIPE || warm > all ? all : warm;
}

void td_plan_actions(const td_plan *plan, int rank, td_action *list)
{
    int all = plan->micro * plan->chunks, forwards = 0, weights = 0;
    bool splits = plan->kind == TD_PLAN_ZB;
    while (forwards < plan_warm_up(plan, rank)) {
        *list++ = plan_pair(plan, forwards++, 'F');
    }
    for (int b = 0; b < all; b++) {
        if (forwards < all) {
            *list++ = plan_pair(plan, forwards++, 'F');
        }
        *list++ = plan_pair(plan, b, splits ? 'I' : 'B');
        if (splits && b >= rank) {
            *list++ = plan_pair(plan, weights++, 'W');
        }
    }
    while (splits && weights < all) {
        *list++ = plan_pair(plan, weights++, 'W');
    }
}

td_action *td_plan_all(const td_plan *plan)
{
    int count = td_plan_count(plan);
    td_action *all = calloc((size_t)count * (size_t)plan->ranks, sizeof *all);
    for (int r = 0; all != NULL && r < plan->ranks; r++) {
        td_plan_actions(plan, r, all + (ptrdiff_t)r * count);
    }
    return all;
}

int td_plan_held(const td_plan *plan, int rank, int chunk)
{
    int held = 0, most = 0, count = td_plan_count(plan);
    td_action *list = calloc((size_t)count, sizeof *list);
    if (list == NULL) {
        return plan->micro * plan->chunks; /* the most that it can be */
    }
    td_plan_actions(plan, rank, list);
    for (int i = 0; i < count; i++) {
        bool counts = chunk < 0 || list[i].chunk == chunk;
        held += counts * ((list[i].kind == 'F') - (list[i].kind == 'B' || list[i].kind == 'W'));
        most = held > most ? held : most;
    }
    free(list);
    return most;
}

/* ---- playing a plan ---- */

/* When F, or B or I, of a stage and micro-batch ends; 0: it has not begun. */
static int *plan_end_of(const td_plan *plan, int *ends, char kind, int stage, int micro)
{
    int stages = plan->ranks * plan->chunks;
    return &ends[((kind == 'F' ? 0 : stages) + stage) * plan->micro + micro];
}

/* Whether what a rank's action needs is there. */
static bool plan_can_run(const td_plan *plan, int *ends, int rank, td_action a, int now)
{
    int stage = a.chunk * plan->ranks + rank, last = plan->ranks * plan->chunks - 1;
    if (a.kind == 'W' || (a.kind == 'F' && stage == 0)) {
        return true;
    }
    int needed = a.kind == 'F'   ? *plan_end_of(plan, ends, 'F', stage - 1, a.micro)
                 : stage == last ? *plan_end_of(plan, ends, 'F', stage, a.micro)
                                 : *plan_end_of(plan, ends, 'B', stage + 1, a.micro);
    return needed > 0 && needed <= now;
}

double td_plan_play(const td_plan *plan, td_action *all)
{
    int ranks = plan->ranks, count = td_plan_count(plan), left = ranks * count, end = 0;
    int *ends = calloc((size_t)(2 * ranks * plan->chunks * plan->micro), sizeof *ends);
    int *next = calloc((size_t)ranks, sizeof *next), *free_at = calloc((size_t)ranks, sizeof *next);
    bool room = ends != NULL && next != NULL && free_at != NULL;
    for (int now = 0; room && left > 0 && now <= end; now++) {
        for (int r = 0; r < ranks; r++) {
            td_action *a = &all[(ptrdiff_t)r * count + next[r]];
            if (next[r] < count && free_at[r] <= now && plan_can_run(plan, ends, r, *a, now)) {
                free_at[r] = now + (a->kind == 'B' ? 2 : 1);
                a->begin = now;
                a->end = free_at[r];
                if (a->kind != 'W') {
                    *plan_end_of(plan, ends, a->kind, a->chunk * ranks + r, a->micro) = free_at[r];
                }
                end = free_at[r] > end ? free_at[r] : end;
                next[r]++;
                left--;
            }
        }
    }
    free(ends);
    free(next);
    free(free_at);
    return left == 0 ? end : -1.0;
}
