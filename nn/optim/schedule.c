/* Learning-rate schedules: pure functions of a position. */
#include "nn/optim/optim.h"
#include "tensor/extend.h"

#include <math.h>

/* From where a cosine or a line begins to the total, where it ends. */
static double length_of(const td_schedule *s, double begin)
{
    TD_REQUIRE(s->total > begin, TD_HERE,
               "td_schedule_lr: total is %g; give the position where the cosine or line ends, "
               "which is greater than where it begins (%g)",
               s->total, begin);
    return s->total - begin;
}

/* From high to low while `done` goes from 0 to 1. */
static double cosine(double high, double low, double done)
{
    return low + (high - low) * (1.0 + cos(3.14159265358979323846 * done)) / 2.0;
}

static double restarted(const td_schedule *s, double position)
{
    double growth = td_or_usual(s->growth, 1.0), length = s->step_size;
    TD_REQUIRE(length > 0.0 && growth >= 1.0, TD_HERE,
               "td_schedule_lr: step_size is %g and growth %g; give the first cycle's length, and "
               "a growth of at least 1",
               length, growth);
    if (growth == 1.0) {
        position = fmod(position, length);
    }
    while (position >= length) {
        position -= length;
        length *= growth;
    }
    return cosine(s->base_lr, s->min_lr, position / length);
}

/* The first step is at 0, the last at total - 1, and the peak at warmup - 1. */
static double one_cycle(const td_schedule *s, double position)
{
    double up = td_or_usual(s->warmup, 0.3 * s->total) - 1.0, down = s->total - 1.0;
    double low = s->base_lr * td_or_usual(s->warmup_factor, 1.0 / 25.0);
    TD_REQUIRE(up > 0.0 && down > up, TD_HERE,
               "td_schedule_lr: one cycle of %g steps, %g of them warm-up: give .total, and a "
               "warm-up of more than one step and less than all",
               s->total, up + 1.0);
    if (position <= up) {
        return cosine(low, s->base_lr, position / up);
    }
    double done = (position - up) / (down - up);
    return cosine(s->base_lr, td_or_usual(s->min_lr, s->base_lr * 4e-6), done < 1.0 ? done : 1.0);
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
    double gamma = td_or_usual(s->gamma, 0.1), begin = s->after_warmup ? s->warmup : 0.0, done;
    switch (s->kind) {
    case TD_SCHEDULE_CONSTANT:
        break;
    case TD_SCHEDULE_STEP:
        TD_REQUIRE(s->step_size > 0.0, TD_HERE,
                   "td_schedule_lr: step_size is %g; give the length of a step", s->step_size);
        return s->base_lr * pow(gamma, floor((position - begin) / s->step_size));
    case TD_SCHEDULE_MULTI_STEP:
        TD_REQUIRE(s->milestone_count >= 0 && s->milestone_count <= 16, TD_HERE,
                   "td_schedule_lr: %d milestones; there is room for 16", s->milestone_count);
        return s->base_lr * pow(gamma, milestones_passed(s, position));
    case TD_SCHEDULE_COSINE:
        return cosine(s->base_lr, s->min_lr, (position - begin) / length_of(s, begin));
    case TD_SCHEDULE_LINEAR:
        done = (position - s->warmup) / length_of(s, s->warmup);
        done = done < 0.0 ? 0.0 : done > 1.0 ? 1.0 : done;
        return s->base_lr + (s->min_lr - s->base_lr) * done;
    case TD_SCHEDULE_RESTARTS:
        return restarted(s, position - begin);
    case TD_SCHEDULE_ONE_CYCLE:
        return one_cycle(s, position);
    }
    return s->base_lr;
}

double td_schedule_lr(const td_schedule *schedule, double position)
{
    if (position >= schedule->warmup || schedule->kind == TD_SCHEDULE_ONE_CYCLE) {
        return main_lr(schedule, position);
    }
    double done = position / schedule->warmup;
    double lr = schedule->after_warmup ? schedule->base_lr : main_lr(schedule, position);
    return lr * (schedule->warmup_factor * (1.0 - done) + done);
}
