/* Whether all parameters get gradients. A missing gradient is an error, unless
 * find_unused_parameters or static_graph allows it: then the ranks tell each other which gradients
 * they have added to. */
#include "dist/ddp/extra/parts.h"

#include "autograd/hooks.h"
#include "dist/comm/collectives.h"
#include "tensor/system/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct usage {
    td_ddp_part part; /* first */
    td_tensor *used;  /* u8 [parameters]: by any rank, in the last reduction */
    td_tensor *kept;  /* copies of gradients that perhaps no rank adds to, flat; NULL: the
                         reduction changes no such gradient, because each rank has its window */
    bool known;       /* static_graph: the set has been found out */
} usage;

/* Copies parameter i's gradient to `kept` or back. */
static void copy_gradient(const usage *u, td_ddp_state *s, int i, bool back)
{
    const td_param *p = td_params_get(s->params, i);
    td_tensor grad = td_ddp_stretch(td_params_flat_grad(s->params), p->begin, p->count);
    td_tensor kept = td_ddp_stretch(u->kept, p->begin, p->count);
    td_copy_(back ? &grad : &kept, back ? &kept : &grad);
}

static bool has_gradient(td_ddp_state *s, int i)
{
    return td_grad(td_params_get(s->params, i)->tensor) != NULL;
}

/* Before a unit is launched: the all-reduce overwrites a gradient to which no backward has added
 * since the last reduction. */
static void usage_keep(const usage *u, td_ddp_state *s, const td_ddp_unit *unit)
{
    for (int k = 0; u->kept != NULL && k < unit->b.param_count; k++) {
        int i = unit->b.params[k];
        if (!s->reducer.params[i].used && has_gradient(s, i)) {
            copy_gradient(u, s, i, false);
        }
    }
}

/* Writes back gradients to which no rank has added. */
static void restore(const usage *u, td_ddp_state *s)
{
    const uint8_t *used = td_data(u->used);
    for (int i = 0; u->kept != NULL && i < s->count; i++) {
        if (!used[i] && has_gradient(s, i)) {
            copy_gradient(u, s, i, true);
        }
    }
}

/* Finds which parameters no rank has used. A parameter that only other ranks have used gets a
 * gradient here as well: their sum is in its memory. */
static td_status usage_share(usage *u, td_ddp_state *s)
{
    td_ddp_param *params = s->reducer.params;
    uint8_t *used = td_data_rw(u->used);
    for (int i = 0; i < s->count; i++) {
        used[i] = params[i].used;
    }
    TD_TRY(td_all_reduce(s->group, u->used, TD_MAX, NULL));
    for (int i = 0; i < s->count; i++) {
        if (used[i] && !params[i].used) {
            td_mark_grad(td_params_get(s->params, i)->tensor);
        }
        params[i].expected = used[i] || !s->options.static_graph;
    }
    u->known = s->options.static_graph;
    return TD_OK;
}

static td_status check_static(td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        TD_CHECK(!s->reducer.params[i].used || s->reducer.params[i].expected, TD_E_MISMATCH,
                 "the parameter '%s' was not used in the first step but is now, although "
                 "static_graph promises that this does not change",
                 td_params_get(s->params, i)->name);
    }
    return TD_OK;
}

/* The other ranks wait for a unit that does not come: the group is aborted with the reason. */
static void abort_group(const td_ddp_state *s, const char *reason)
{
    char text[800];
    snprintf(text, sizeof text, "rank %d: %s", td_group_rank(s->group), reason);
    td_group_abort(s->group, text);
}

/* A parameter that was frozen has lost its hook, also if it takes gradients again. */
static td_status require_hooks(td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        const td_param *p = td_params_get(s->params, i);
        if (!td_has_grad_hook(p->tensor, s->reducer.params[i].hook)) {
            td_status status = td_fail(TD_E_MISMATCH,
                                       "'%.500s' was frozen after td_ddp, which waits for its "
                                       "gradient: freeze before td_ddp and td_parameters, on all "
                                       "ranks",
                                       p->name);
            abort_group(s, td_last_error());
            return status;
        }
    }
    return TD_OK;
}

/* Fails if a parameter got no gradient. */
static td_status require_all(td_ddp_state *s)
{
    char names[600] = "";
    int missing = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->reducer.params[i].used) {
            continue;
        }
        const char *name = td_params_get(s->params, i)->name;
        if (strlen(names) + strlen(name) + 16 < sizeof names) {
            td_append(names, sizeof names, "%s'%s'", missing > 0 ? ", " : "", name);
        }
        missing++;
    }
    if (missing == 0) {
        return TD_OK;
    }
    char reason[700];
    snprintf(reason, sizeof reason, "no gradient for %s (find_unused_parameters)", names);
    abort_group(s, reason);
    return td_fail(TD_E_MISMATCH,
                   "%d parameter%s got no gradient in this backward, so its bucket cannot be "
                   "reduced: %s. If the loss does not always depend on all parameters, set "
                   "find_unused_parameters",
                   missing, missing == 1 ? "" : "s", names);
}

static td_status on_missing(td_ddp_part *part, td_ddp_state *s, td_ddp_event event,
                            td_ddp_unit *unit)
{
    (void)part, (void)unit;
    bool backward = s->reducer.ready_count > 0; /* a rank without data adds nothing */
    if (event != TD_DDP_FINISH || !backward || s->failure.status != TD_OK) {
        return TD_OK;
    }
    TD_TRY(require_hooks(s));
    return require_all(s);
}

static td_status usage_on(td_ddp_part *part, td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit)
{
    usage *u = (usage *)part;
    switch (event) {
    case TD_DDP_FINISH:
        return require_hooks(s);
    case TD_DDP_LAUNCH:
        usage_keep(u, s, unit);
        return TD_OK;
    case TD_DDP_ALL_SENT:
        return u->known ? check_static(s) : usage_share(u, s);
    case TD_DDP_SUMMED:
        restore(u, s);
        return TD_OK;
    default:
        return TD_OK;
    }
}

static void free_usage(td_ddp_part *part)
{
    usage *u = (usage *)part;
    td_free(u->used);
    td_free(u->kept);
    free(u);
}

td_status td_ddp_usage_open(td_ddp_state *s)
{
    usage *u = calloc(1, sizeof *u);
    TD_CHECK(u != NULL, TD_E_NOMEM, "td_ddp: no memory for a map of unused parameters");
    u->part = (td_ddp_part){ .on = on_missing, .free = free_usage };
    td_ddp_add_part(s, &u->part);
    if (!s->options.find_unused_parameters && !s->options.static_graph) {
        return TD_OK;
    }
    const td_tensor *flat = td_params_flat(s->params);
    u->part.on = usage_on;
    bool whole = s->divided < TD_DIVIDES_GRADIENTS;
    u->kept = whole ? td_zeros(td_shape_of(flat), flat->dtype, td_device_of(flat)) : NULL;
    u->used = td_zeros(TD_SHAPE(s->count), TD_U8, TD_CPU);
    return (u->kept != NULL || !whole) && u->used != NULL ? TD_OK : TD_E_NOMEM;
}
