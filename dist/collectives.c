/* The collectives of dist.h: checks of tensors, and a td_collective for the queue. */
#include "dist/group.h"

#include "dist/watchdog.h"
#include "dist/collectives.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks: programming mistakes ---- */

static void check_tensor(const td_tensor *t, const char *what)
{
    TD_REQUIRE(t != NULL, TD_NOWHERE, "%s: a tensor is NULL", what);
    td_check_alive(t, TD_NOWHERE);
    TD_REQUIRE(t->step == 0, TD_NOWHERE,
               "%s: %s belongs to a step; collectives need persistent tensors: td_clone it", what,
               td_label(t));
    TD_REQUIRE(td_is_dense(t), TD_NOWHERE, "%s: the elements of %s do not lie side by side", what,
               td_label(t));
}

static void check_op(const td_tensor *t, td_reduction op, const char *what)
{
    TD_REQUIRE(op >= TD_SUM && op <= TD_PRODUCT, TD_NOWHERE, "%s: there is no reduction %d", what,
               (int)op);
    TD_REQUIRE(op != TD_AVERAGE || td_is_float(t->dtype), TD_NOWHERE,
               "%s: averages are for floats, and %s is none; sum it and divide", what, td_label(t));
}

static void check_peer(const td_group *group, int peer, const char *what)
{
    TD_REQUIRE(peer >= 0 && peer < group->size, TD_NOWHERE,
               "%s: rank %d does not exist in a group of %d", what, peer, group->size);
}

static void check_together(const td_tensor *a, const td_tensor *b, const char *what)
{
    TD_REQUIRE(td_same_device(td_device_of(a), td_device_of(b)), TD_NOWHERE,
               "%s: %s and %s are on different devices", what, td_label(a), td_label(b));
}

/* Checks that `all` has one piece for each rank: `size` times the elements of the piece. */
static void check_pieces(const td_group *group, const td_tensor *all, const td_tensor *piece,
                         const char *what)
{
    TD_REQUIRE(all->dtype == piece->dtype, TD_NOWHERE, "%s: %s and %s are of different dtypes",
               what, td_label(all), td_label(piece));
    TD_REQUIRE(td_numel(all) == group->size * td_numel(piece), TD_NOWHERE,
               "%s: %s must have %d times the elements of %s, one piece for every rank", what,
               td_label(all), group->size, td_label(piece));
    check_together(all, piece, what);
}

/* The address of the elements, on the host or on a GPU. The engine writes there. */
static void *elements_to_write(td_tensor *t, const char *what)
{
    td_begin_write(t, what, TD_HERE);
    return td_ptr(t);
}

/* Runs the collective on the engine of the tensor's device: the group's CPU or device engine. */
static td_status submit(td_group *group, td_collective *c, const td_tensor *t, td_work **work)
{
    return td_group_uses_device(group, t) ? td_device_submit(group, c, td_device_of(t), work)
                                          : td_submit(group, c, 0, work);
}

/* ---- one tensor, in place ---- */

static td_status submit_in_place(td_group *group, td_tensor *t, td_collective c, td_work **work,
                                 const char *what)
{
    c.dtype = t->dtype;
    c.count = td_numel(t);
    c.out = elements_to_write(t, what);
    c.in = c.out;
    return submit(group, &c, t, work);
}

td_status td_all_reduce(td_group *group, td_tensor *t, td_reduction op, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_all_reduce");
    check_op(t, op, "td_all_reduce");
    td_collective c = { .kind = TD_COLLECTIVE_ALL_REDUCE, .op = op };
    return submit_in_place(group, t, c, work, "td_all_reduce");
}

td_status td_broadcast(td_group *group, td_tensor *t, int root, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_broadcast");
    check_peer(group, root, "td_broadcast");
    td_collective c = { .kind = TD_COLLECTIVE_BROADCAST, .peer = root };
    return submit_in_place(group, t, c, work, "td_broadcast");
}

td_status td_reduce(td_group *group, td_tensor *t, td_reduction op, int root, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_reduce");
    check_op(t, op, "td_reduce");
    check_peer(group, root, "td_reduce");
    td_collective c = { .kind = TD_COLLECTIVE_REDUCE, .op = op, .peer = root };
    return submit_in_place(group, t, c, work, "td_reduce");
}

/* ---- pieces ---- */

td_status td_all_gather(td_group *group, td_tensor *out, const td_tensor *in, td_work **work)
{
    return td_all_gather_unit(group, out, in, 0, work);
}

td_status td_all_gather_unit(td_group *group, td_tensor *out, const td_tensor *in, int unit,
                             td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(out, "td_all_gather");
    check_tensor(in, "td_all_gather");
    check_pieces(group, out, in, "td_all_gather");
    td_collective c = { .kind = TD_COLLECTIVE_ALL_GATHER,
                        .dtype = in->dtype,
                        .peer = unit,
                        .in = td_ptr(in),
                        .out = elements_to_write(out, "td_all_gather"),
                        .count = td_numel(in) };
    return submit(group, &c, in, work);
}

td_status td_reduce_scatter(td_group *group, td_tensor *out, const td_tensor *in, td_reduction op,
                            td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(out, "td_reduce_scatter");
    check_tensor(in, "td_reduce_scatter");
    check_pieces(group, in, out, "td_reduce_scatter");
    check_op(out, op, "td_reduce_scatter");
    td_collective c = { .kind = TD_COLLECTIVE_REDUCE_SCATTER,
                        .dtype = in->dtype,
                        .op = op,
                        .in = td_ptr(in),
                        .out = elements_to_write(out, "td_reduce_scatter"),
                        .count = td_numel(out) };
    return submit(group, &c, in, work);
}

td_status td_gather(td_group *group, td_tensor *out, const td_tensor *in, int root, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(in, "td_gather");
    check_peer(group, root, "td_gather");
    bool is_root = root == group->rank;
    if (is_root) {
        check_tensor(out, "td_gather");
        check_pieces(group, out, in, "td_gather");
    }
    td_collective c = { .kind = TD_COLLECTIVE_GATHER,
                        .dtype = in->dtype,
                        .peer = root,
                        .in = td_ptr(in),
                        .out = is_root ? elements_to_write(out, "td_gather") : NULL,
                        .count = td_numel(in) };
    return submit(group, &c, in, work);
}

td_status td_scatter(td_group *group, td_tensor *out, const td_tensor *in, int root, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(out, "td_scatter");
    check_peer(group, root, "td_scatter");
    bool is_root = root == group->rank;
    if (is_root) {
        check_tensor(in, "td_scatter");
        check_pieces(group, in, out, "td_scatter");
    }
    td_collective c = { .kind = TD_COLLECTIVE_SCATTER,
                        .dtype = out->dtype,
                        .peer = root,
                        .in = is_root ? td_ptr(in) : NULL,
                        .out = elements_to_write(out, "td_scatter"),
                        .count = td_numel(out) };
    return submit(group, &c, out, work);
}

td_status td_all_to_all(td_group *group, td_tensor *out, const td_tensor *in, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(out, "td_all_to_all");
    check_tensor(in, "td_all_to_all");
    TD_REQUIRE(
        out->dtype == in->dtype && td_numel(out) == td_numel(in) && td_numel(in) % group->size == 0,
        TD_NOWHERE,
        "td_all_to_all: %s and %s must be of one dtype and have the same number of elements, "
        "a multiple of %d",
        td_label(out), td_label(in), group->size);
    check_together(out, in, "td_all_to_all");
    td_collective c = { .kind = TD_COLLECTIVE_ALL_TO_ALL,
                        .dtype = in->dtype,
                        .in = td_ptr(in),
                        .out = elements_to_write(out, "td_all_to_all"),
                        .count = td_numel(in) / group->size };
    return submit(group, &c, in, work);
}

/* ---- messages ---- */

static void check_other(const td_group *group, int peer, const char *what)
{
    check_peer(group, peer, what);
    TD_REQUIRE(peer != group->rank, TD_NOWHERE, "%s: rank %d is this rank itself", what, peer);
}

td_status td_send(td_group *group, const td_tensor *t, int to, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_send");
    check_other(group, to, "td_send");
    td_collective c = { .kind = TD_COLLECTIVE_SEND,
                        .dtype = t->dtype,
                        .peer = to,
                        .in = td_ptr(t),
                        .count = td_numel(t) };
    return submit(group, &c, t, work);
}

td_status td_recv(td_group *group, td_tensor *t, int from, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_recv");
    check_other(group, from, "td_recv");
    td_collective c = { .kind = TD_COLLECTIVE_RECV,
                        .dtype = t->dtype,
                        .peer = from,
                        .out = elements_to_write(t, "td_recv"),
                        .count = td_numel(t) };
    return submit(group, &c, t, work);
}

/* ---- barriers and numbers ---- */

td_status td_barrier(td_group *group)
{
    return td_monitored_barrier(group, 0);
}

td_status td_monitored_barrier(td_group *group, double timeout)
{
    group = td_group_or_world(group);
    td_collective c = { .kind = TD_COLLECTIVE_BARRIER };
    return td_submit(group, &c, timeout, NULL);
}

td_status td_all_reduce_numbers(td_group *group, double *values, int count)
{
    group = td_group_or_world(group);
    TD_REQUIRE(count >= 0 && (values != NULL || count == 0), TD_NOWHERE,
               "td_all_reduce_numbers: %d numbers at %p", count, (void *)values);
    td_collective c = { .kind = TD_COLLECTIVE_ALL_REDUCE,
                        .dtype = TD_F64,
                        .in = values,
                        .out = values,
                        .count = count };
    return td_submit(group, &c, 0, NULL);
}

/* ---- text ---- */

td_status td_text_of_root(td_group *group, const char *mine, int64_t length, char **text)
{
    *text = malloc((size_t)length + 1);
    if (*text == NULL) {
        td_fail(TD_E_NOMEM, "no memory for rank 0's text of %lld bytes", (long long)length);
        td_group_abort(group, td_last_error()); /* otherwise the other ranks would wait */
        return TD_E_NOMEM;
    }
    if (td_group_rank(group) == 0) {
        memcpy(*text, mine, (size_t)length);
    }
    (*text)[length] = '\0';
    td_tensor *t = td_borrow(*text, TD_SHAPE(length), TD_U8, TD_CPU);
    td_status status = t != NULL ? td_broadcast(group, t, 0, NULL) : TD_E_NOMEM;
    td_free(t);
    return status;
}

/* The first rank that failed tells the others why. */
td_status td_group_agree(td_group *group, td_status mine)
{
    int32_t failed = mine == TD_OK ? td_group_size(group) : td_group_rank(group);
    struct {
        int32_t status;
        char reason[400];
    } why = { .status = mine };
    snprintf(why.reason, sizeof why.reason, "%s", mine != TD_OK ? td_last_reason() : "");
    td_tensor *first = td_borrow(&failed, TD_SCALAR, TD_I32, TD_CPU);
    td_tensor *told = td_borrow(&why, TD_SHAPE(sizeof why), TD_U8, TD_CPU);
    td_status status =
        first == NULL || told == NULL ? TD_E_NOMEM : td_all_reduce(group, first, TD_MIN, NULL);
    bool all_well = failed == td_group_size(group);
    if (status == TD_OK && !all_well) {
        status = td_broadcast(group, told, failed, NULL);
    }
    td_free(first);
    td_free(told);
    if (status != TD_OK) {
        return mine != TD_OK ? td_fail(mine, "%s", why.reason) : status;
    }
    return all_well ? TD_OK
                    : td_fail((td_status)why.status, "rank %d: %s", (int)failed, why.reason);
}
