/* Modules: running them, walking over them, and the list of what is in them. */
#include "nn/internal.h"
#include "autograd/tape.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

/* ---- running ---- */

/* The end of a forward whose beginning has pushed the module's name. */
static td_tensor *run_in_scope(td_module *m, td_tensor *x, td_tensor *second, td_site at)
{
    int64_t scope = td_scope_begin();
    td_tensor *y = td_run_rest(&(td_around_rest){ m, td_node_of(m)->around, at, second }, x);
    td_scope_end(scope, y == x || y == second ? NULL : y);
    td_context_pop();
    return y;
}

static void begin_forward(const td_module *m, const char *function, td_site at)
{
    TD_REQUIRE(m != NULL, at, "%s: the module is NULL: its constructor failed (%s)", function,
               td_last_reason());
    TD_REQUIRE(td_in_step(), at, "%s outside a step: put it into TD_STEP { }", function);
    td_context_push(td_node_of(m)->label);
}

td_tensor *td_forward_at(td_module *m, td_tensor *x, td_site at)
{
    begin_forward(m, "td_forward", at);
    TD_REQUIRE(x != NULL, at, "td_forward: the input is NULL");
    TD_REQUIRE(m->type->forward != NULL, at, "%s takes two inputs: td_forward2", m->type->name);
    return run_in_scope(m, x, NULL, at);
}

td_tensor *td_forward2_at(td_module *m, td_tensor *a, td_tensor *b, td_site at)
{
    begin_forward(m, "td_forward2", at);
    TD_REQUIRE(a != NULL && b != NULL, at, "td_forward2: input %s is NULL", a == NULL ? "a" : "b");
    TD_REQUIRE(m->type->forward2 != NULL, at, "%s takes one input: td_forward", m->type->name);
    return run_in_scope(m, a, b, at);
}

/* ---- what is around a forward ---- */

td_tensor *td_run_rest(const td_around_rest *rest, td_tensor *x)
{
    const td_around *a = rest->next;
    const td_module_type *type = rest->m->type;
    if (a != NULL) {
        return a->run(&(td_around_rest){ rest->m, a->next, rest->at, rest->second }, x, a->user);
    }
    td_tensor *y = rest->second != NULL ? type->forward2(rest->m, x, rest->second, rest->at)
                                        : type->forward(rest->m, x, rest->at);
    TD_REQUIRE(y != NULL, rest->at, "%s: its forward returned NULL", type->name);
    return y;
}

bool td_is_surrounded(const td_module *m)
{
    return td_node_of(m)->around != NULL;
}

static const td_around **next_of(const td_around *a)
{
    return (const td_around **)(uintptr_t)&a->next;
}

td_status td_module_surround(td_module *m, const td_around *around)
{
    td_around *a = malloc(sizeof *a);
    TD_CHECK(a != NULL, TD_E_NOMEM, "no memory to surround '%s'", td_node_of(m)->label);
    const td_around **link = &td_node_of(m)->around;
    while (around->inside && *link != NULL) {
        link = next_of(*link);
    }
    *a = *around;
    a->next = *link;
    *link = a;
    return TD_OK;
}

void *td_surrounded_by(const td_module *m, td_around_fn run)
{
    const td_around *a = td_node_of(m)->around;
    while (a != NULL && a->run != run) {
        a = a->next;
    }
    return a != NULL ? a->user : NULL;
}

const char *td_module_wrapper(const td_module *m)
{
    const td_around *a = td_node_of(m)->around;
    while (a != NULL && a->wrapper == NULL) {
        a = a->next;
    }
    return a != NULL ? a->wrapper : NULL;
}

td_status td_module_gather(td_module *m, bool here)
{
    for (const td_around *a = td_node_of(m)->around; a != NULL; a = a->next) {
        TD_TRY(a->gather != NULL ? a->gather(here, a->user) : TD_OK);
    }
    return TD_OK;
}

void td_module_unsurround(td_module *m, td_around_fn run, const void *user)
{
    const td_around **link = &td_node_of(m)->around;
    while (*link != NULL && ((*link)->run != run || (*link)->user != user)) {
        link = next_of(*link);
    }
    td_around *a = (td_around *)(uintptr_t)*link;
    if (a != NULL) {
        *link = a->next;
        if (a->free != NULL) {
            a->free(a->user);
        }
        free(a);
    }
}

/* ---- modes ---- */

static void set_training(td_module *net, bool training)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        m->training = training;
    }
}

void td_train(td_module *m)
{
    set_training(m, true);
}

void td_eval(td_module *m)
{
    set_training(m, false);
}

void td_eval_for_now(td_module *net)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        td_node_of(m)->modes = td_node_of(m)->modes << 1 | m->training;
        m->training = false;
    }
}

void td_give_modes_back(td_module *net)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        m->training = td_node_of(m)->modes & 1;
        td_node_of(m)->modes >>= 1;
    }
}

/* ---- walking ---- */

td_module *td_module_next(const td_module *top, const td_module *m)
{
    if (m->child_count > 0) {
        return m->children[0];
    }
    for (const td_module *parent; m != top; m = parent) {
        int i = 0;
        parent = td_node_of(m)->parent;
        while (parent->children[i] != m) {
            i++;
        }
        if (i + 1 < parent->child_count) {
            return parent->children[i + 1];
        }
    }
    return NULL;
}

/* The part of a path that is below a module's. */
static const char *below(const td_module *top, const char *path)
{
    size_t prefix = strlen(td_node_of(top)->path);
    return strlen(path) > prefix && prefix > 0 ? path + prefix + 1 : path + prefix;
}

const char *td_module_path(const td_module *top, const td_module *m)
{
    return below(top, td_node_of(m)->path);
}

td_module *td_module_find(td_module *m, const char *path)
{
    if (*path == '\0') {
        return m;
    }
    size_t length = strcspn(path, ".");
    const char *rest = path[length] == '.' ? path + length + 1 : path + length;
    for (int i = 0; i < m->child_count; i++) {
        const char *name = m->children[i]->name;
        if (strlen(name) == length && memcmp(name, path, length) == 0) {
            return td_module_find(m->children[i], rest);
        }
    }
    return NULL;
}

int td_module_chain(td_module *m, td_chain_link *links)
{
    bool whole = td_node_of(m)->parent != NULL && td_is_surrounded(m); /* its links are not all */
    if (m->type->chain != NULL && !whole) {
        return m->type->chain(m, links);
    }
    if (links != NULL) {
        *links = (td_chain_link){ .parts = { m }, .uses = 1.0 };
    }
    return 1;
}

/* ---- the list of tensors ---- */

td_state_list td_module_state(const td_module *net)
{
    size_t count = 0;
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        count += (size_t)m->tensor_count;
    }
    td_state_list list = { calloc(count + 1, sizeof(td_named_tensor)), 0 };
    bool made = list.items != NULL;
    for (const td_module *m = net; made && m != NULL; m = td_module_next(net, m)) {
        for (int i = 0; made && i < m->tensor_count; i++) {
            td_named_tensor *item = &list.items[list.count++];
            *item = m->tensors[i];
            item->name = strdup(below(net, td_node_of(m)->tensor_paths[i]));
            made = item->name != NULL;
        }
    }
    if (!made) {
        td_state_list_free(&list);
        td_fail(TD_E_NOMEM, "no memory for the list of a model's %zu tensors", count);
        list.count = -1;
    }
    return list;
}

void td_state_list_free(td_state_list *list)
{
    for (int i = 0; i < list->count; i++) {
        free((char *)(uintptr_t)list->items[i].name);
    }
    free(list->items);
    *list = (td_state_list){ NULL, 0 };
}

/* Whether item i of a list is the first mention of its tensor. */
static bool first_mention(const td_state_list *list, int i)
{
    for (int j = 0; j < i; j++) {
        if (list->items[j].tensor == list->items[i].tensor) {
            return false;
        }
    }
    return true;
}

int64_t td_parameter_count(const td_module *m)
{
    td_state_list list = td_module_state(m);
    int64_t count = 0;
    for (int i = 0; i < list.count; i++) {
        if (!list.items[i].buffer && first_mention(&list, i)) {
            count += td_numel(list.items[i].tensor);
        }
    }
    td_state_list_free(&list);
    return count;
}

/* ---- moving ---- */

void td_exchange_memory(td_tensor *t, td_tensor *other)
{
    td_tensor old = *t;
    t->dtype = other->dtype;
    t->storage = other->storage;
    t->offset = other->offset;
    memcpy(t->stride, other->stride, sizeof t->stride);
    other->dtype = old.dtype;
    other->storage = old.storage;
    other->offset = old.offset;
    memcpy(other->stride, old.stride, sizeof old.stride);
}

/* A filter lies as convolutions and products read it on its device; all else as it was. */
static td_tensor *copy_to(const td_tensor *t, td_dtype dtype, td_device device)
{
    if (td_draw_of(t) != NULL) {
        td_layout layout = td_is_layout(t, TD_FILTER) ? TD_FILTER : TD_ROW_MAJOR;
        return td_draw_later(td_draw_of(t), td_shape_of(t), dtype, layout, device);
    }
    if (t->ndim < 2 || !td_is_layout(t, TD_FILTER)) {
        return td_clone_as(t, dtype, device);
    }
    td_tensor *copy = td_new_layout(td_shape_of(t), dtype, TD_FILTER, device);
    if (copy != NULL) {
        td_copy_(copy, t);
    }
    return copy;
}

/* All conversions first, then all exchanges: a failure leaves the module as it was. */
static td_status move_tensors(td_state_list *list, td_device device, td_dtype dtype)
{
    td_tensor **moved = calloc((size_t)list->count + 1, sizeof(td_tensor *));
    TD_CHECK(moved != NULL, TD_E_NOMEM, "no memory to move a model");
    td_status status = TD_OK;
    for (int i = 0; i < list->count && status == TD_OK; i++) {
        td_tensor *t = list->items[i].tensor;
        if (!first_mention(list, i)) {
            continue;
        }
        moved[i] = copy_to(t, td_is_float(t->dtype) ? dtype : t->dtype, device);
        if (moved[i] == NULL) {
            status = td_fail_context(TD_E_NOMEM, "moving '%s'", list->items[i].name);
        }
    }
    for (int i = 0; i < list->count; i++) {
        td_tensor *t = list->items[i].tensor;
        if (status != TD_OK) {
            td_free(moved[i]);
        } else if (moved[i] != NULL) {
            bool leaf = td_is_leaf(t);
            td_requires_grad(t, false); /* a gradient of the old kind is of no use */
            td_exchange_memory(t, moved[i]);
            td_requires_grad(t, leaf);
            td_free(moved[i]);
        }
    }
    free(moved);
    return status;
}

const td_module *td_module_with_params(td_module *net)
{
    const td_module *m = net;
    while (m != NULL && td_node_of(m)->params == NULL) {
        m = td_module_next(net, m);
    }
    const td_module *up = net;
    while (m == NULL && up != NULL && td_node_of(up)->params == NULL) {
        up = td_node_of(up)->parent;
    }
    return m != NULL ? m : up;
}

td_status td_module_to_at(td_module *net, td_device device, td_dtype dtype, td_site at)
{
    TD_REQUIRE(td_is_float(dtype), at, "td_module_to: %s is no float dtype", td_dtype_name(dtype));
    td_require_device(device, at);
    TD_REQUIRE(td_module_with_params(net) == NULL, at,
               "td_module_to: the parameters are laid out flat already; move a model before the "
               "first td_parameters");
    td_state_list list = td_module_state(net);
    if (list.count < 0) {
        return TD_E_NOMEM;
    }
    td_status status = move_tensors(&list, device, dtype);
    for (td_module *m = net; m != NULL && status == TD_OK; m = td_module_next(net, m)) {
        m->device = device;
        m->dtype = dtype;
    }
    td_state_list_free(&list);
    return status;
}
