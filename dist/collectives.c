/* The collectives of dist.h: checks of tensors, and a td_collective for the queue. */
#include "dist/group.h"

#include "dist/reduce_math.h"
#include "dist/watchdog.h"
#include "tensor/storage.h"

#include <stdio.h>

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
    TD_REQUIRE(t->storage->device.type == TD_DEVICE_CPU, TD_NOWHERE,
               "%s: %s is not on a CPU, where this group's backend works", what, td_label(t));
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

/* all holds one piece for every rank: its elements are `size` times the piece's. */
static void check_pieces(const td_group *group, const td_tensor *all, const td_tensor *piece,
                         const char *what)
{
    TD_REQUIRE(all->dtype == piece->dtype, TD_NOWHERE, "%s: %s and %s are of different dtypes",
               what, td_label(all), td_label(piece));
    TD_REQUIRE(td_numel(all) == group->size * td_numel(piece), TD_NOWHERE,
               "%s: %s must have %d times the elements of %s, one piece for every rank", what,
               td_label(all), group->size, td_label(piece));
}

/* ---- one tensor, in place ---- */

static td_status submit_in_place(td_group *group, td_tensor *t, td_collective c, td_work **work)
{
    c.dtype = t->dtype;
    c.count = td_numel(t);
    c.out = td_data_rw(t);
    c.in = c.out;
    return td_submit(group, &c, 0, work);
}

td_status td_all_reduce(td_group *group, td_tensor *t, td_reduction op, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_all_reduce");
    check_op(t, op, "td_all_reduce");
    td_collective c = { .kind = TD_COLLECTIVE_ALL_REDUCE, .op = op };
    return submit_in_place(group, t, c, work);
}

td_status td_broadcast(td_group *group, td_tensor *t, int root, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_broadcast");
    check_peer(group, root, "td_broadcast");
    td_collective c = { .kind = TD_COLLECTIVE_BROADCAST, .peer = root };
    return submit_in_place(group, t, c, work);
}

td_status td_reduce(td_group *group, td_tensor *t, td_reduction op, int root, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_reduce");
    check_op(t, op, "td_reduce");
    check_peer(group, root, "td_reduce");
    td_collective c = { .kind = TD_COLLECTIVE_REDUCE, .op = op, .peer = root };
    return submit_in_place(group, t, c, work);
}

/* ---- pieces ---- */

td_status td_all_gather(td_group *group, td_tensor *out, const td_tensor *in, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(out, "td_all_gather");
    check_tensor(in, "td_all_gather");
    check_pieces(group, out, in, "td_all_gather");
    td_collective c = { .kind = TD_COLLECTIVE_ALL_GATHER,
                        .dtype = in->dtype,
                        .in = td_data(in),
                        .out = td_data_rw(out),
                        .count = td_numel(in) };
    return td_submit(group, &c, 0, work);
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
                        .in = td_data(in),
                        .out = td_data_rw(out),
                        .count = td_numel(out) };
    return td_submit(group, &c, 0, work);
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
                        .in = td_data(in),
                        .out = is_root ? td_data_rw(out) : NULL,
                        .count = td_numel(in) };
    return td_submit(group, &c, 0, work);
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
                        .in = is_root ? td_data(in) : NULL,
                        .out = td_data_rw(out),
                        .count = td_numel(out) };
    return td_submit(group, &c, 0, work);
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
    td_collective c = { .kind = TD_COLLECTIVE_ALL_TO_ALL,
                        .dtype = in->dtype,
                        .in = td_data(in),
                        .out = td_data_rw(out),
                        .count = td_numel(in) / group->size };
    return td_submit(group, &c, 0, work);
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
                        .in = td_data(t),
                        .count = td_numel(t) };
    return td_submit(group, &c, 0, work);
}

td_status td_recv(td_group *group, td_tensor *t, int from, td_work **work)
{
    group = td_group_or_world(group);
    check_tensor(t, "td_recv");
    check_other(group, from, "td_recv");
    td_collective c = { .kind = TD_COLLECTIVE_RECV,
                        .dtype = t->dtype,
                        .peer = from,
                        .out = td_data_rw(t),
                        .count = td_numel(t) };
    return td_submit(group, &c, 0, work);
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
