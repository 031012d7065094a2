/* What PowerSGD keeps from step to step, so that a checkpoint can hold it: how many steps there
 * have been, each matrix' last Q, which is the same on all ranks, and the error, which each rank
 * has its own of. In a checkpoint:
 *
 *     extra.powersgd.steps                  i64 [2]: steps; whether the factors mean anything
 *     extra.powersgd.factor.<path>          [m,r]
 *     extra.powersgd.error.<rank>.<path>    as the parameter
 */
#include "dist/ddp.h"
#include "nn/params.h"

#include <stdlib.h>
#include <string.h>

enum { NAME = 512 };

typedef struct td_powersgd_state {
    td_tensor *steps;    /* i64 [2], on the CPU */
    td_tensor **factors; /* of each parameter; NULL: it travels as it is */
    td_tensor *gathered; /* [world, flat]: all ranks' errors, of the last saving */
    /* What was listed last. */
    td_named_tensor *items;
    int count, room;
} td_powersgd_state;

enum { STEPS, KNOWN };

/* ---- the matrices ---- */

int64_t td_powersgd_rank(const td_ddp_state *s, int64_t n, int64_t m)
{
    int64_t least = n < m ? n : m, r = s->options.powersgd_rank;
    return r < least ? r : least;
}

bool td_powersgd_compresses(const td_ddp_state *s, int param, int64_t *n, int64_t *m)
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

static td_status make_factors(td_ddp_state *s, td_powersgd_state *p)
{
    p->factors = calloc((size_t)s->count, sizeof(td_tensor *));
    if (p->factors == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    }
    const td_tensor *flat = td_params_flat(s->params);
    for (int i = 0; i < s->count; i++) {
        int64_t n, m;
        if (td_powersgd_compresses(s, i, &n, &m)) {
            p->factors[i] =
                td_zeros(TD_SHAPE(m, td_powersgd_rank(s, n, m)), flat->dtype, td_device_of(flat));
            TD_TRY(p->factors[i] != NULL ? TD_OK : TD_E_NOMEM);
        }
    }
    return TD_OK;
}

td_status td_powersgd_state_new(td_ddp_state *s)
{
    td_powersgd_state *p = s->powersgd = calloc(1, sizeof *p);
    s->error = td_params_new_flat(s->params);
    if (p == NULL || s->error == NULL) {
        return td_fail(TD_E_NOMEM, "td_ddp: no memory for PowerSGD");
    }
    p->steps = td_zeros(TD_SHAPE(2), TD_I64, TD_CPU);
    TD_TRY(p->steps != NULL ? TD_OK : TD_E_NOMEM);
    return make_factors(s, p);
}

/* Views and names of the last list. */
static void forget_list(td_ddp_state *s)
{
    td_powersgd_state *p = s->powersgd;
    for (int i = 0; i < p->count; i++) {
        bool kept = p->items[i].tensor == p->steps;
        for (int k = 0; k < s->count && !kept; k++) {
            kept = p->items[i].tensor == p->factors[k];
        }
        if (!kept) {
            td_free(p->items[i].tensor);
        }
        free((char *)(uintptr_t)p->items[i].name);
    }
    p->count = 0;
    td_free(p->gathered);
    p->gathered = NULL;
}

void td_powersgd_state_free(td_ddp_state *s)
{
    td_powersgd_state *p = s->powersgd;
    if (s->error != NULL) {
        td_params_drop_state(s->params, s->error);
    }
    if (p == NULL) {
        return;
    }
    forget_list(s);
    for (int i = 0; p->factors != NULL && i < s->count; i++) {
        td_free(p->factors[i]);
    }
    td_free(p->steps);
    free(p->factors);
    free(p->items);
    free(p);
    s->powersgd = NULL;
}

/* ---- steps and factors ---- */

static int64_t *counts(const td_ddp_state *s)
{
    return td_data_rw(s->powersgd->steps);
}

bool td_powersgd_active(const td_ddp_state *s)
{
    return counts(s)[STEPS] >= s->options.powersgd_start;
}

void td_powersgd_count_step(td_ddp_state *s)
{
    if (s->powersgd != NULL) {
        counts(s)[STEPS]++;
    }
}

void td_powersgd_keep(td_ddp_state *s, int param, const td_tensor *q)
{
    td_copy_(s->powersgd->factors[param], q);
}

void td_powersgd_recall(const td_ddp_state *s, int param, td_tensor *q)
{
    if (counts(s)[KNOWN]) {
        td_copy_(q, s->powersgd->factors[param]);
    }
}

void td_powersgd_remember(td_ddp_state *s)
{
    int sent = 0;
    for (int i = 0; i < s->bucket_count; i++) {
        sent += td_powersgd_remember_factors(s, &s->buckets[i]) == TD_OK;
    }
    if (sent > 0) {
        counts(s)[KNOWN] = sent == s->bucket_count;
    }
}

/* ---- lists for checkpoints ---- */

static td_status add(td_powersgd_state *p, td_tensor *t, const char *what, int rank,
                     const char *path)
{
    char name[NAME], number[16] = "";
    if (p->count == p->room) {
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
    p->items[p->count++] = (td_named_tensor){ .name = kept, .tensor = t };
    return TD_OK;
}

static td_status add_common(td_ddp_state *s)
{
    td_powersgd_state *p = s->powersgd;
    TD_TRY(add(p, p->steps, "steps", -1, NULL));
    for (int i = 0; i < s->count; i++) {
        if (p->factors[i] != NULL) {
            const char *path = td_params_get(s->params, i)->name;
            TD_TRY(add(p, p->factors[i], "factor", -1, path));
        }
    }
    return TD_OK;
}

/* flat: a rank's error. */
static td_status add_errors(td_ddp_state *s, td_tensor *flat, int rank)
{
    td_powersgd_state *p = s->powersgd;
    for (int i = 0; i < s->count; i++) {
        if (p->factors[i] != NULL) {
            td_tensor *view = td_params_view(s->params, flat, i);
            td_status status = add(p, view, "error", rank, td_params_get(s->params, i)->name);
            if (status != TD_OK) {
                td_free(view);
                return status;
            }
        }
    }
    return TD_OK;
}

static td_status gather_errors(td_ddp_state *s)
{
    td_powersgd_state *p = s->powersgd;
    int64_t n = td_numel(s->error);
    bool root = s->rank == 0;
    if (root) {
        p->gathered = td_zeros(TD_SHAPE(s->world, n), s->error->dtype, td_device_of(s->error));
        if (p->gathered == NULL) {
            td_group_abort(s->group, "rank 0 has no memory for all ranks' PowerSGD state");
            return TD_E_NOMEM;
        }
    }
    TD_TRY(td_gather(s->group, p->gathered, s->error, 0, NULL));
    for (int r = 0; root && r < s->world; r++) {
        td_tensor flat = *p->gathered; /* by value: a header that takes no hold */
        flat.ndim = 1;
        flat.shape[0] = n;
        flat.stride[0] = 1;
        flat.offset += r * n;
        TD_TRY(add_errors(s, &flat, r));
    }
    return TD_OK;
}

static td_status give_list(td_ddp_state *s, td_status status, const td_named_tensor **tensors,
                           int *count)
{
    bool lists = status == TD_OK && s->powersgd != NULL;
    *tensors = lists ? s->powersgd->items : NULL;
    *count = lists ? s->powersgd->count : 0;
    return status;
}

td_status td_ddp_state_to_save(td_module *ddp, const td_named_tensor **tensors, int *count)
{
    td_ddp_state *s = td_ddp_state_of(ddp);
    td_status status = TD_OK;
    if (s->powersgd != NULL) {
        forget_list(s);
        td_powersgd_remember(s);
        status = s->rank == 0 ? add_common(s) : TD_OK;
        td_status gathered = gather_errors(s); /* the others wait for it */
        status = status == TD_OK ? gathered : status;
    }
    return give_list(s, status, tensors, count);
}

td_status td_ddp_state_to_load(td_module *ddp, const td_named_tensor **tensors, int *count)
{
    td_ddp_state *s = td_ddp_state_of(ddp);
    td_status status = TD_OK;
    if (s->powersgd != NULL) {
        forget_list(s);
        td_powersgd_remember(s);
        for (int i = 0; i < s->bucket_count; i++) {
            td_powersgd_free(&s->buckets[i]); /* they go on with the factors that come */
        }
        status = add_common(s);
        status = status == TD_OK ? add_errors(s, s->error, s->rank) : status;
    }
    return give_list(s, status, tensors, count);
}
