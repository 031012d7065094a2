/* The collectives of dist.h: checks of tensors, and a td_collective for the queue. */
#include "dist/comm/group.h"

#include "dist/comm/collectives.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks: programming mistakes ---- */

static void check_tensor(const td_tensor *t, bool blocks, const char *what)
{
    TD_REQUIRE(t != NULL, TD_NOWHERE, "td_%s: a tensor is NULL", what);
    td_check_alive(t, TD_NOWHERE);
    TD_REQUIRE(t->step == 0 || blocks, TD_NOWHERE,
               "td_%s: %s belongs to a step, whose end does not wait for queued collectives: pass "
               "work NULL, or td_clone the tensor",
               what, td_label(t));
    TD_REQUIRE(td_is_dense(t), TD_NOWHERE, "td_%s: the elements of %s do not lie side by side",
               what, td_label(t));
}

static void check_op(const td_tensor *t, td_reduction op, const char *what)
{
    TD_REQUIRE(op >= TD_SUM && op <= TD_PRODUCT, TD_NOWHERE, "td_%s: there is no reduction %d",
               what, (int)op);
    TD_REQUIRE(op != TD_AVERAGE || td_is_float(t->dtype), TD_NOWHERE,
               "td_%s: averages are for floats, and %s is none; sum it and divide", what,
               td_label(t));
}

static void check_peer(const td_group *group, int peer, const char *what)
{
    TD_REQUIRE(peer >= 0 && peer < group->size, TD_NOWHERE,
               "td_%s: rank %d does not exist in a group of %d", what, peer, group->size);
}

/* Checks sizes: the tensor that has a piece for each rank has `size` times the other's elements, or
 * both have a piece for each rank. */
static void check_pieces(int size, const td_kind *kind, const td_tensor *out, const td_tensor *in,
                         const char *what)
{
    const td_tensor *all = kind->gives_all ? in : out, *piece = kind->gives_all ? out : in;
    if (kind->gives_all && kind->takes_all) {
        TD_REQUIRE(out->dtype == in->dtype && td_numel(out) == td_numel(in) &&
                       td_numel(in) % size == 0,
                   TD_NOWHERE,
                   "td_%s: %s and %s must be of one dtype and have the same number of elements, a "
                   "multiple of %d",
                   what, td_label(out), td_label(in), size);
    } else {
        TD_REQUIRE(out->dtype == in->dtype, TD_NOWHERE, "td_%s: %s and %s are of different dtypes",
                   what, td_label(out), td_label(in));
        TD_REQUIRE(td_numel(all) == size * td_numel(piece), TD_NOWHERE,
                   "td_%s: %s must have %d times the elements of %s, one piece for every rank",
                   what, td_label(all), size, td_label(piece));
    }
    TD_REQUIRE(td_same_device(td_device_of(out), td_device_of(in)), TD_NOWHERE,
               "td_%s: %s and %s are on different devices", what, td_label(out), td_label(in));
}

/* Runs the collective on the engine of the tensors' device: the group's CPU or device engine. out
 * is ignored on a rank that does not take, and in on a rank that does not give. Kinds of one piece
 * work in place: out and in are the same tensor on all ranks. */
static td_status collective_call(td_group *group, td_collective c, td_tensor *out,
                                 const td_tensor *in, td_work **work)
{
    group = td_group_or_world(group);
    const td_kind *kind = td_kind_of(c.kind);
    const char *what = kind->name;
    if (kind->gives == TD_ROOT || kind->takes == TD_ROOT) {
        check_peer(group, c.peer, what);
    }
    const bool in_place = out == in && !kind->gives_all && !kind->takes_all;
    const int given = in_place ? 1 : td_pieces_given(&c, group->rank, group->size);
    const int taken = in_place ? 1 : td_pieces_taken(&c, group->rank, group->size);
    const td_tensor *t = given > 0 ? in : out;
    if (given > 0) {
        check_tensor(in, work == NULL, what);
        c.in = td_ptr(in);
    }
    if (taken > 0) {
        check_tensor(out, work == NULL, what);
    }
    if (given > 0 && taken > 0 && !in_place) {
        check_pieces(group->size, kind, out, in, what);
    }
    if (kind->reduces) {
        check_op(t, c.op, what);
    }
    if (taken > 0) { /* the engine writes the elements, on the host or on a GPU */
        td_begin_write(out, what, TD_HERE);
        c.out = td_ptr(out);
    }
    c.dtype = t->dtype;
    c.count = td_numel(t) / (given > 0 ? given : taken);
    return td_group_uses_device(group, t) ? td_device_submit(group, &c, td_device_of(t), work)
                                          : td_submit(group, &c, 0, work);
}

td_status td_all_reduce(td_group *group, td_tensor *t, td_reduction op, td_work **work)
{
    return collective_call(group, (td_collective){ .kind = TD_COLLECTIVE_ALL_REDUCE, .op = op }, t,
                           t, work);
}

td_status td_broadcast(td_group *group, td_tensor *t, int root, td_work **work)
{
    return collective_call(group, (td_collective){ .kind = TD_COLLECTIVE_BROADCAST, .peer = root },
                           t, t, work);
}

td_status td_reduce(td_group *group, td_tensor *t, td_reduction op, int root, td_work **work)
{
    return collective_call(
        group, (td_collective){ .kind = TD_COLLECTIVE_REDUCE, .op = op, .peer = root }, t, t, work);
}

td_status td_all_gather(td_group *group, td_tensor *out, const td_tensor *in, td_work **work)
{
    return td_all_gather_unit(group, out, in, 0, work);
}

td_status td_all_gather_unit(td_group *group, td_tensor *out, const td_tensor *in, int unit,
                             td_work **work)
{
    return collective_call(group, (td_collective){ .kind = TD_COLLECTIVE_ALL_GATHER, .peer = unit },
                           out, in, work);
}

td_status td_reduce_scatter(td_group *group, td_tensor *out, const td_tensor *in, td_reduction op,
                            td_work **work)
{
    return collective_call(group, (td_collective){ .kind = TD_COLLECTIVE_REDUCE_SCATTER, .op = op },
                           out, in, work);
}

td_status td_gather(td_group *group, td_tensor *out, const td_tensor *in, int root, td_work **work)
{
    return collective_call(group, (td_collective){ .kind = TD_COLLECTIVE_GATHER, .peer = root },
                           out, in, work);
}

td_status td_scatter(td_group *group, td_tensor *out, const td_tensor *in, int root, td_work **work)
{
    return collective_call(group, (td_collective){ .kind = TD_COLLECTIVE_SCATTER, .peer = root },
                           out, in, work);
}

td_status td_all_to_all(td_group *group, td_tensor *out, const td_tensor *in, td_work **work)
{
    return collective_call(group, (td_collective){ .kind = TD_COLLECTIVE_ALL_TO_ALL }, out, in,
                           work);
}

/* ---- messages ---- */

static td_group *check_other(td_group *group, int peer, const char *what)
{
    group = td_group_or_world(group);
    check_peer(group, peer, what);
    TD_REQUIRE(peer != group->rank, TD_NOWHERE, "td_%s: rank %d is this rank itself", what, peer);
    return group;
}

static td_message_name message_name(const char *text)
{
    td_message_name name = { { 0 } };
    size_t length = strlen(text);
    TD_REQUIRE(length <= sizeof name.text, TD_NOWHERE,
               "the name of a message has at most %zu characters, and '%s' has more",
               sizeof name.text, text);
    memcpy(name.text, text, length);
    return name;
}

td_status td_send_named(td_group *group, const td_tensor *t, int to, const char *name,
                        td_work **work)
{
    td_collective c = { .kind = TD_COLLECTIVE_SEND, .peer = to, .name = message_name(name) };
    return collective_call(check_other(group, to, "send"), c, NULL, t, work);
}

td_status td_recv_named(td_group *group, td_tensor *t, int from, const char *name, td_work **work)
{
    td_collective c = { .kind = TD_COLLECTIVE_RECV, .peer = from, .name = message_name(name) };
    return collective_call(check_other(group, from, "recv"), c, t, NULL, work);
}

td_status td_send(td_group *group, const td_tensor *t, int to, td_work **work)
{
    return td_send_named(group, t, to, "", work);
}

td_status td_recv(td_group *group, td_tensor *t, int from, td_work **work)
{
    return td_recv_named(group, t, from, "", work);
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

/* The lowest rank that failed tells the others why. */
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
