/* PowerSGD's state between steps, which checkpoints keep: the number of steps, each matrix's last Q
 * (the same on all ranks), and each rank's error. In a checkpoint:
 *
 *     extra.powersgd.steps                  i64 [2]: steps; whether the factors are valid
 *     extra.powersgd.factor.<path>          [m,r]
 *     extra.powersgd.error.<rank>.<path>    as the parameter
 */
#include "dist/ddp/powersgd.h"
#include "dist/collectives.h"
#include "nn/params.h"
#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

enum { NAME = 512 };

enum { STEPS, KNOWN };

/* ---- the matrices ---- */

int64_t td_powersgd_rank(const td_powersgd *s, int64_t n, int64_t m)
{
    int64_t least = n < m ? n : m, r = s->rank;
    return r < least ? r : least;
}

bool td_powersgd_compresses(const td_powersgd *s, int param, int64_t *n, int64_t *m)
{
    const td_tensor *t = td_params_get(s->params, param)->tensor;
    if (t->ndim < 2 || td_numel(t) == 0) {
        return false;
    }
    *n = t->shape[0];
    *m = td_numel(t) / *n;
    bool dense = t->stride[0] == 1 || t->stride[0] == *m;
    return dense && (*n + *m) * td_powersgd_rank(s, *n, *m) * 2 < *n * *m;
}

/* ---- beginning and end ---- */

static td_status make_factors(td_powersgd *s)
{
    s->factors = calloc((size_t)s->count, sizeof(td_tensor *));
    if (s->factors == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    }
    const td_tensor *flat = td_params_flat(s->params);
    for (int i = 0; i < s->count; i++) {
        int64_t n, m;
        if (td_powersgd_compresses(s, i, &n, &m)) {
            s->factors[i] =
                td_zeros(TD_SHAPE(m, td_powersgd_rank(s, n, m)), flat->dtype, td_device_of(flat));
            TD_TRY(s->factors[i] != NULL ? TD_OK : TD_E_NOMEM);
        }
    }
    return TD_OK;
}

static td_status broadcast(td_tensor *t, int from, void *group)
{
    return td_broadcast(group, t, from, NULL);
}

static td_status agree(td_status mine, void *group)
{
    return td_group_agree(group, mine);
}

td_status td_powersgd_open(td_group *group, td_params *params, const td_ddp_options *options,
                           void **state)
{
    td_powersgd *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    }
    *state = s;
    s->group = group;
    s->params = params;
    s->count = td_params_count(params);
    s->rank = options->powersgd_rank > 0 ? options->powersgd_rank : 1;
    s->start = options->powersgd_start > 0 ? options->powersgd_start : 1000;
    s->error = td_params_new_flat(params);
    s->steps = td_zeros(TD_SHAPE(2), TD_I64, TD_CPU);
    TD_TRY(s->error != NULL && s->steps != NULL ? TD_OK : TD_E_NOMEM);
    if (td_params_ranks_of(params) == NULL) { /* otherwise they share the optimizer's state */
        td_params_set_peers(params, &(td_params_peers){ .rank = td_group_rank(group),
                                                        .count = td_group_size(group),
                                                        .broadcast = broadcast,
                                                        .agree = agree,
                                                        .user = group });
    }
    return make_factors(s);
}

/* Views and names of the last list. */
static void forget_list(td_powersgd *s)
{
    for (int i = 0; i < s->item_count; i++) {
        bool kept = s->items[i].tensor == s->steps;
        for (int k = 0; k < s->count && !kept; k++) {
            kept = s->items[i].tensor == s->factors[k];
        }
        if (!kept) {
            td_free(s->items[i].tensor);
        }
        free((char *)(uintptr_t)s->items[i].name);
    }
    s->item_count = 0;
}

void td_powersgd_close(void *state)
{
    td_powersgd *s = state;
    if (td_params_peers_of(s->params) == NULL) {
        td_params_set_peers(s->params, NULL);
    }
    if (s->error != NULL) {
        td_params_drop_state(s->params, s->error);
    }
    forget_list(s);
    for (int i = 0; s->factors != NULL && i < s->count; i++) {
        td_free(s->factors[i]);
    }
    td_free(s->steps);
    free(s->factors);
    free(s->items);
    free(s);
}

const td_tensor *td_powersgd_own(void *state)
{
    return ((const td_powersgd *)state)->error;
}

/* ---- steps and factors ---- */

static int64_t *counts(const td_powersgd *s)
{
    return td_data_rw(s->steps);
}

bool td_powersgd_active(const td_powersgd *s)
{
    return counts(s)[STEPS] >= s->start;
}

void td_powersgd_stepped(void *state)
{
    counts(state)[STEPS]++;
}

void td_powersgd_keep(td_powersgd *s, int param, const td_tensor *q)
{
    td_copy_(s->factors[param], q);
}

void td_powersgd_recall(const td_powersgd *s, int param, td_tensor *q)
{
    if (counts(s)[KNOWN]) {
        td_copy_(q, s->factors[param]);
    }
}

void td_powersgd_remember(td_powersgd *s)
{
    int parts, sent;
    td_powersgd_remember_factors(s, &parts, &sent);
    if (sent > 0) {
        counts(s)[KNOWN] = sent == parts;
    }
    s->remembered = true;
}

/* ---- lists for checkpoints ---- */

static td_status add(td_powersgd *p, td_tensor *t, const char *what, int rank, const char *path)
{
    char name[NAME], number[16] = "";
    if (p->item_count == p->room) {
        int room = 2 * p->room + 16;
        td_named_tensor *items = realloc(p->items, (size_t)room * sizeof *items);
        if (items == NULL) {
            return td_fail(TD_E_NOMEM, "no memory for a list of PowerSGD's state");
        }
        p->items = items;
        p->room = room;
    }
    if (rank >= 0) {
        snprintf(number, sizeof number, ".%d", rank);
    }
    snprintf(name, sizeof name, "extra.powersgd.%s%s%s%s", what, number, path != NULL ? "." : "",
             path != NULL ? path : "");
    char *kept = strdup(name);
    if (t == NULL || kept == NULL) {
        free(kept);
        return td_fail(TD_E_NOMEM, "no memory for a list of PowerSGD's state");
    }
    p->items[p->item_count++] =
        (td_named_tensor){ .name = kept, .tensor = t, .owner = rank > 0 ? rank : 0 };
    return TD_OK;
}

static td_status add_common(td_powersgd *s)
{
    td_powersgd *p = s;
    TD_TRY(add(p, p->steps, "steps", -1, NULL));
    for (int i = 0; i < s->count; i++) {
        if (p->factors[i] != NULL) {
            const char *path = td_params_get(s->params, i)->name;
            TD_TRY(add(p, p->factors[i], "factor", -1, path));
        }
    }
    return TD_OK;
}

static td_status add_errors(td_powersgd *s, int rank)
{
    td_powersgd *p = s;
    for (int i = 0; i < s->count; i++) {
        if (p->factors[i] != NULL) {
            td_tensor *view = td_params_view(s->params, s->error, i);
            td_status status = add(p, view, "error", rank, td_params_get(s->params, i)->name);
            if (status != TD_OK) {
                td_free(view);
                return status;
            }
        }
    }
    return TD_OK;
}

/* To save, all ranks list the errors of all; each has its own, whose form is that of the others'.
 */
td_status td_powersgd_list(void *state, bool save, const td_named_tensor **tensors, int *count)
{
    td_powersgd *s = state;
    int rank = td_group_rank(s->group);
    int first = save ? 0 : rank, end = save ? td_group_size(s->group) : rank + 1;
    forget_list(s);
    td_powersgd_remember(s);
    if (!save) {
        td_powersgd_forget_parts(s);
    }
    td_status status = add_common(s);
    for (int r = first; r < end && status == TD_OK; r++) {
        status = add_errors(s, r);
    }
    *tensors = status == TD_OK ? s->items : NULL;
    *count = status == TD_OK ? s->item_count : 0;
    return status;
}
