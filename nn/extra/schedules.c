/* Learning rate schedules one after the other, and a rate that follows a metric. */
#include "nn/extra/schedules.h"
#include "tensor/extend.h"

#include <math.h>

double td_schedules_lr(const td_schedule *schedules, const double *milestones, int count,
                       double position)
{
    TD_REQUIRE(count > 0, TD_HERE, "td_schedules_lr: there is no schedule");
    int i = 0;
    while (i + 1 < count && position >= milestones[i]) {
        i++;
    }
    return td_schedule_lr(&schedules[i], i == 0 ? position : position - milestones[i - 1]);
}

static bool is_better(const td_plateau *p, double metric)
{
    double threshold = td_or_usual(p->threshold, 1e-4);
    double sign = p->larger_is_better ? 1.0 : -1.0;
    double limit = p->absolute ? p->best + sign * threshold : p->best * (1.0 + sign * threshold);
    bool better = p->larger_is_better ? metric > limit : metric < limit;
    return p->begun ? better : !isnan(metric);
}

double td_plateau_step(td_plateau *p, double metric)
{
    if (is_better(p, metric)) {
        p->best = metric;
        p->begun = true;
        p->bad = 0;
    } else {
        p->bad++;
    }
    if (p->cooling > 0) {
        p->cooling--;
        p->bad = 0;
    }
    int patience = p->patience > 0 ? p->patience : p->patience < 0 ? 0 : 10;
    if (p->bad > patience) {
        double lr = p->lr * td_or_usual(p->factor, 0.1);
        p->lr = lr > p->min_lr ? lr : p->min_lr;
        p->cooling = p->cooldown;
        p->bad = 0;
    }
    return p->lr;
}
