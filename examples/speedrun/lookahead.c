/* Lookahead: slow weights that follow the trained weights. */
#include "examples/speedrun/lookahead.h"
#include "nn/extra/average.h"

#include <stdlib.h>

struct lookahead {
    td_average slow;
    double decay;
};

lookahead *lookahead_new(td_module *model)
{
    lookahead *l = calloc(1, sizeof *l);
    if (l == NULL || !td_average_begin(&l->slow, model)) {
        lookahead_free(l);
        td_fail(TD_E_NOMEM, "no memory for lookahead's second copy of the weights");
        return NULL;
    }
    return l;
}

void lookahead_free(lookahead *l)
{
    if (l != NULL) {
        td_average_end(&l->slow);
        free(l);
    }
}

void lookahead_set_decay(lookahead *l, double decay)
{
    TD_REQUIRE(decay >= 0.0 && decay <= 1.0, TD_HERE,
               "lookahead_set_decay: decay %g is not in [0, 1]", decay);
    l->decay = decay;
}

/* A decay of 1 leaves the slow weights alone. */
static void fill_slices(void *user, void *numbers)
{
    const lookahead *l = user;
    td_optim_slice *slices = numbers;
    int count = td_average_fill(&l->slow, slices, l->decay);
    for (int i = 0; i < count; i++) {
        slices[i].skip = l->decay == 1.0;
    }
}

void lookahead_update(lookahead *l)
{
    td_average_update(&l->slow, fill_slices, l, true, "lookahead_update");
}
