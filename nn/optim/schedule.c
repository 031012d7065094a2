/* Learning-rate schedules: pure functions of a position. */
#include "nn/optim/optim.h"

#include <math.h>

/* How much of a straight line from the end of the warm-up to the total is done, in [0,1]. */
static double line_done(const td_schedule *s, double position)
{
    TD_REQUIRE(s->total > s->warmup, TD_HERE,
               "td_schedule_lr: total is %g; give an end of the line behind the warm-up's (%g)",
               s->total, s->warmup);
    double done = (position - s->warmup) / (s->total - s->warmup);
    return done < 0.0 ? 0.0 : done > 1.0 ? 1.0 : done;
}

static double milestones_passed(const td_schedule *s, double position)
{
    int passed = 0;
    for (int i = 0; i < s->milestone_count; i++) {
        passed += position >= s->milestones[i];
    }
    return passed;
}

/* Without the warm-up. */
static double main_lr(const td_schedule *s, double position)
{
    double gamma = s->gamma != 0.0 ? s->gamma : 0.1;
    switch (s->kind) {
    case TD_SCHEDULE_CONSTANT:
        break;
    case TD_SCHEDULE_STEP:
        TD_REQUIRE(s->step_size > 0.0, TD_HERE,
                   "td_schedule_lr: step_size is %g; give the length "
                   "of a step",
                   s->step_size);
        return s->base_lr * pow(gamma, floor(position / s->step_size));
    case TD_SCHEDULE_MULTI_STEP:
        TD_REQUIRE(s->milestone_count >= 0 && s->milestone_count <= 16, TD_HERE,
                   "td_schedule_lr: %d milestones; there is room for 16", s->milestone_count);
        return s->base_lr * pow(gamma, milestones_passed(s, position));
    case TD_SCHEDULE_COSINE:
        TD_REQUIRE(s->total > 0.0, TD_HERE,
                   "td_schedule_lr: total is %g; give the length of the "
                   "cosine",
                   s->total);
        return s->min_lr + (s->base_lr - s->min_lr) *
                               (1.0 + cos(3.14159265358979323846 * position / s->total)) / 2.0;
    case TD_SCHEDULE_LINEAR:
        return s->base_lr + (s->min_lr - s->base_lr) * line_done(s, position);
    }
    return s->base_lr;
}

double td_schedule_lr(const td_schedule *schedule, double position)
{
    double lr = main_lr(schedule, position);
    if (position < schedule->warmup) {
        double done = position / schedule->warmup;
        lr *= schedule->warmup_factor * (1.0 - done) + done;
    }
    return lr;
}
