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
    if (chunks < 1 || chunks > 64) {
        return td_fail(TD_E_ARG,
                       "there is no schedule '%s': there are gpipe, 1f1b, zb, and interleaved:N "
                       "with N stages a rank, at most 64",
                       text);
    }
    plan->chunks = (int)chunks;
    if (micro < 1 || micro > 9999) {
        return td_fail(TD_E_ARG, "a step has %d micro-batches: 1 to 9999 are possible", micro);
    }
    if (chunks > 1 && micro % ranks != 0) {
        return td_fail(TD_E_ARG,
                       "schedule '%s': %d micro-batches are no multiple of %d ranks; take %d, or "
                       "1f1b",
                       text, micro, ranks, (micro + ranks - 1) / ranks * ranks);
    }
    return TD_OK;
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

typedef struct plan_player {
    const td_plan *plan;
    const double *cost;
    td_action *lists; /* [rank][count] */
    double *ends;     /* when F and B (or I) of a stage and micro-batch have ended; 0: not yet */
    double *clock;    /* by rank */
    int *next;        /* by rank: its next action */
} plan_player;

static double *plan_end_of(const plan_player *p, char kind, int stage, int micro)
{
    int stages = p->plan->ranks * p->plan->chunks;
    return &p->ends[((kind == 'F' ? 0 : stages) + stage) * p->plan->micro + micro];
}

/* When what the action needs is there; negative: not yet. */
static double plan_ready(const plan_player *p, int rank, td_action a)
{
    int stage = a.chunk * p->plan->ranks + rank, last = p->plan->ranks * p->plan->chunks - 1;
    if (a.kind == 'W' || (a.kind == 'F' && stage == 0)) {
        return p->clock[rank];
    }
    double needed = a.kind == 'F'   ? *plan_end_of(p, 'F', stage - 1, a.micro)
                    : stage == last ? *plan_end_of(p, 'F', stage, a.micro)
                                    : *plan_end_of(p, 'B', stage + 1, a.micro);
    return needed <= 0.0 ? -1.0 : needed > p->clock[rank] ? needed : p->clock[rank];
}

/* Runs a rank's next action, if it can run. */
static bool plan_advance(plan_player *p, int rank, td_span *spans)
{
    int count = td_plan_count(p->plan), i = p->next[rank];
    if (i == count) {
        return false;
    }
    td_action a = p->lists[rank * count + i];
    double begin = plan_ready(p, rank, a);
    if (begin < 0.0) {
        return false;
    }
    double time = a.kind == 'F'   ? p->cost[0]
                  : a.kind == 'I' ? p->cost[1]
                  : a.kind == 'W' ? p->cost[2]
                                  : p->cost[1] + p->cost[2];
    spans[rank * count + i] = (td_span){ begin, begin + time };
    p->clock[rank] = begin + time;
    p->next[rank]++;
    if (a.kind != 'W') {
        *plan_end_of(p, a.kind, a.chunk * p->plan->ranks + rank, a.micro) = begin + time;
    }
    return true;
}

static double plan_play_all(plan_player *p, td_span *spans)
{
    int ranks = p->plan->ranks, count = td_plan_count(p->plan);
    double all = 0.0;
    for (int r = 0; r < ranks; r++) {
        td_plan_actions(p->plan, r, p->lists + r * count);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < ranks; r++) {
            while (plan_advance(p, r, spans)) {
                moved = true;
            }
        }
    }
    for (int r = 0; r < ranks; r++) {
        all = p->next[r] < count ? -1.0 : all < 0.0 || p->clock[r] < all ? all : p->clock[r];
    }
    return all;
}

double td_plan_play(const td_plan *plan, const double cost[3], td_span *spans)
{
    size_t ranks = (size_t)plan->ranks, count = (size_t)td_plan_count(plan);
    size_t ends = 2 * ranks * (size_t)(plan->chunks * plan->micro);
    plan_player p = { .plan = plan,
                      .cost = cost,
                      .lists = calloc(ranks * count, sizeof *p.lists),
                      .ends = calloc(ends, sizeof *p.ends),
                      .clock = calloc(ranks, sizeof *p.clock),
                      .next = calloc(ranks, sizeof *p.next) };
    bool room = p.lists != NULL && p.ends != NULL && p.clock != NULL && p.next != NULL;
    double all = room ? plan_play_all(&p, spans) : -1.0;
    free(p.lists);
    free(p.ends);
    free(p.clock);
    free(p.next);
    return all;
}
