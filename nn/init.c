/* PyTorch's initialisations, draw by draw, from the default generator. */
#include "nn/internal.h"

#include <math.h>

static _Thread_local bool blank;

bool td_init_blank(bool on)
{
    bool before = blank;
    blank = on;
    return before;
}

bool td_init_is_blank(void)
{
    return blank;
}

void td_init_uniform_(td_tensor *t, double bound)
{
    if (!blank) {
        td_uniform_(t, -bound, bound, td_default_generator());
    }
}

void td_init_normal_(td_tensor *t, double std)
{
    if (!blank) {
        td_normal_(t, 0.0, std, td_default_generator());
    }
}

/* The inputs that one output of a weight [O,I,...] sums over. */
static int64_t fan_in_of(const td_tensor *weight)
{
    int64_t outputs = weight->shape[0];
    return outputs > 0 ? td_numel(weight) / outputs : 0;
}

void td_init_kaiming_uniform_(td_tensor *weight)
{
    int64_t fan_in = fan_in_of(weight);
    if (fan_in == 0) {
        return;
    }
    /* He et al. 2015 for a leaky relu of slope a; the steps as PyTorch rounds them. */
    double a = sqrt(5.0);
    double gain = sqrt(2.0 / (1.0 + a * a));
    double bound = sqrt(3.0) * (gain / sqrt((double)fan_in));
    td_init_uniform_(weight, bound);
}

void td_init_bias_uniform_(td_tensor *bias, int64_t fan_in)
{
    if (fan_in > 0) {
        td_init_uniform_(bias, 1.0 / sqrt((double)fan_in));
    }
}

void td_init_kaiming_normal_fan_in_(td_tensor *weight)
{
    int64_t fan_in = fan_in_of(weight);
    if (fan_in > 0) {
        td_init_normal_(weight, sqrt(2.0) / sqrt((double)fan_in));
    }
}

void td_init_kaiming_normal_fan_out_(td_tensor *weight)
{
    int64_t inputs = weight->ndim > 1 ? weight->shape[1] : 1;
    int64_t fan_out = inputs > 0 ? td_numel(weight) / inputs : 0;
    if (fan_out > 0) {
        td_init_normal_(weight, sqrt(2.0) / sqrt((double)fan_out));
    }
}

void td_init_dirac_(td_tensor *weight, int64_t filters)
{
    TD_REQUIRE(weight->ndim == 4, TD_HERE, "td_init_dirac_: the weight is %s, not [O,I,KH,KW]",
               td_describe(weight));
    if (blank) {
        return;
    }
    const int64_t *shape = weight->shape;
    filters = filters < shape[0] ? filters : shape[0];
    filters = filters < shape[1] ? filters : shape[1];
    for (int64_t o = 0; o < filters; o++) {
        for (int64_t i = 0; i < td_numel(weight) / shape[0]; i++) {
            int64_t at[] = { o, i / (shape[2] * shape[3]), i / shape[3] % shape[2], i % shape[3] };
            bool hands_on = at[1] == o && at[2] == shape[2] / 2 && at[3] == shape[3] / 2;
            td_set(weight, at, hands_on ? 1.0 : 0.0);
        }
    }
}
