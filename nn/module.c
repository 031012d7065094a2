/* Modules: building them, naming what is in them, ending them. Walking and running them is in
 * forward.c. */
#include "nn/internal.h"
#include "autograd/tape.h"
#include "nn/params.h"
#include "tensor/system/list.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void give_up(td_module *m)
{
    td_node_of(m)->failed = true;
}

/* "a", `between`, "b" and `end`; one of the two alone where the other is empty. NULL when memory is
 * short. */
static char *join(const char *a, const char *between, const char *b, const char *end)
{
    bool both = *a != '\0' && *b != '\0';
    char *text;
    TD_CHECK_NULL(asprintf(&text, "%s%s%s%s", a, both ? between : "", b, both ? end : "") >= 0,
                  TD_E_NOMEM, "no memory for the name of a module");
    return text;
}

/* Puts a new string in the place of an old one; a NULL marks the module as failed. */
static void replace_string(td_module *m, char **place, char *text)
{
    if (text == NULL) {
        give_up(m);
        return;
    }
    free(*place);
    *place = text;
}

/* Gives a module, its tensors and all below their paths. Called whenever a module gets a parent, so
 * that the names in messages are always the whole ones. */
static void set_paths(td_module *m, const char *parent_path)
{
    td_module_node *node = td_node_of(m);
    replace_string(m, &node->path, join(parent_path, ".", m->name, ""));
    replace_string(m, &node->label, join(node->path, " (", m->type->name, ")"));
    for (int i = 0; i < m->tensor_count; i++) {
        replace_string(m, &node->tensor_paths[i], join(node->path, ".", m->tensors[i].name, ""));
        m->tensors[i].tensor->name = node->tensor_paths[i];
    }
    for (int i = 0; i < m->child_count; i++) {
        set_paths(m->children[i], node->path);
    }
    if (node->failed && node->parent != NULL) {
        give_up(node->parent);
    }
}

void td_free_later(void *memory)
{
    static void *_Atomic waiting[256];
    static atomic_uint at;
    free(atomic_exchange(&waiting[atomic_fetch_add(&at, 1) % 256], memory));
}

static td_tensor *refuse(td_module *m, td_tensor *x, td_site at)
{
    (void)m, (void)x;
    TD_REQUIRE(false, at, "td_forward: the module was freed: call td_module_free last");
    return NULL;
}

static const td_module_type freed = { .name = "freed module", .forward = refuse };

bool td_module_is_freed(const td_module *m)
{
    return m->type == &freed;
}

/* The module's own memory; children, tensors and the type's extras have gone. */
static void free_node(td_module_node *node)
{
    td_module *m = &node->module;
    for (int i = 0; i < m->tensor_count; i++) {
        free((char *)(uintptr_t)m->tensors[i].name);
        free(node->tensor_paths[i]);
    }
    free(m->tensors);
    free(node->tensor_paths);
    free(m->children);
    free(m->state);
    free((char *)(uintptr_t)m->name);
    free(node->path);
    free(node->label);
    *node = (td_module_node){ .module.type = &freed, .label = (char *)(uintptr_t)freed.name };
    td_free_later(node);
}

td_module *td_module_new(const td_module_type *type, size_t state_size)
{
    td_module_node *node = calloc(1, sizeof *node);
    TD_CHECK_NULL(node != NULL, TD_E_NOMEM, "no memory for a %s", type->name);
    td_module *m = &node->module;
    node->state_size = state_size;
    m->type = type;
    m->training = true;
    m->device = TD_CPU;
    m->dtype = TD_F32;
    m->name = strdup("");
    m->state = state_size > 0 ? calloc(1, state_size) : NULL;
    node->path = strdup("");
    node->label = strdup(type->name);
    if (m->name == NULL || node->path == NULL || node->label == NULL ||
        (state_size > 0 && m->state == NULL)) {
        free_node(node);
        td_fail(TD_E_NOMEM, "no memory for a %s", type->name);
        return NULL;
    }
    return m;
}

/* Names become parts of paths: a dot, or the same name twice, would make two things one. */
static void check_name(const td_module *m, const char *name, td_site at)
{
    TD_REQUIRE(name != NULL && *name != '\0' && strchr(name, '.') == NULL, at,
               "%s: '%s' cannot be the name of a child or tensor: it must not be empty or contain "
               "a dot",
               m->type->name, name == NULL ? "NULL" : name);
    for (int i = 0; i < m->child_count; i++) {
        TD_REQUIRE(strcmp(m->children[i]->name, name) != 0, at,
                   "%s already has a child '%s'; give every child a name of its own", m->type->name,
                   name);
    }
    for (int i = 0; i < m->tensor_count; i++) {
        TD_REQUIRE(strcmp(m->tensors[i].name, name) != 0, at,
                   "%s already has a tensor '%s'; give every tensor a name of its own",
                   m->type->name, name);
    }
}

/* A part of m is NULL: m cannot be made, and the last error says why. */
static void give_up_without(td_module *m, const char *kind, const char *name)
{
    if (td_last_error()[0] != '\0') {
        td_fail_context(TD_E_ARG, "%s: %s %s is NULL: its constructor failed", m->type->name, kind,
                        name);
    } else {
        td_fail(TD_E_ARG, "%s: %s %s is NULL (%s)", m->type->name, kind, name, td_last_reason());
    }
    give_up(m);
}

td_module *td_module_mark(td_module *m, td_module_part part)
{
    if (m != NULL) {
        td_node_of(m)->part = part;
    }
    return m;
}

td_module_part td_module_part_of(const td_module *m)
{
    return td_node_of(m)->part;
}

td_module *td_module_add_at(td_module *parent, const char *name, td_module *child, td_site at)
{
    if (parent == NULL) {
        td_module_free(child);
        return NULL;
    }
    check_name(parent, name, at);
    if (child == NULL) {
        give_up_without(parent, "child", name);
        return NULL;
    }
    td_module_node *node = td_node_of(child);
    for (const td_module *up = parent; up != NULL; up = td_node_of(up)->parent) {
        TD_REQUIRE(up != child, at, "%s: '%s' cannot be a child: this module is part of it",
                   parent->type->name, name);
    }
    TD_REQUIRE(node->parent == NULL, at,
               "%s is already part of another module (as '%s'); a module has one place. To share "
               "weights, register the same tensor in two modules",
               child->type->name, node->path);
    TD_REQUIRE(td_node_of(parent)->params == NULL && node->params == NULL, at,
               "'%s' is added to %s after td_parameters; build the whole model first", name,
               parent->type->name);

    char *own_name = strdup(name);
    if (own_name == NULL || !td_grow(&parent->children, parent->child_count, sizeof(td_module *))) {
        free(own_name);
        td_module_free(child);
        td_fail(TD_E_NOMEM, "no memory to add '%s' to %s", name, parent->type->name);
        give_up(parent);
        return NULL;
    }
    free((char *)(uintptr_t)child->name);
    child->name = own_name;
    parent->children[parent->child_count++] = child;
    node->parent = parent;
    set_paths(child, td_node_of(parent)->path);
    return child;
}

/* Unless another module has it already. */
static void free_unadded(td_tensor *t)
{
    if (t != NULL && !t->lent) {
        td_free(t);
    }
}

static td_tensor *add_tensor(td_module *m, const char *name, td_tensor *t, bool buffer, td_site at)
{
    if (m == NULL) {
        free_unadded(t);
        return NULL;
    }
    check_name(m, name, at);
    if (t == NULL) {
        give_up_without(m, "tensor", name);
        return NULL;
    }
    TD_REQUIRE(td_node_of(m)->params == NULL, at,
               "'%s' is added to %s after td_parameters; build the whole model first", name,
               m->type->name);
    char *own_name = strdup(name);
    char *path = join(td_node_of(m)->path, ".", name, "");
    if (own_name == NULL || path == NULL ||
        !td_grow(&m->tensors, m->tensor_count, sizeof *m->tensors) ||
        !td_grow(&td_node_of(m)->tensor_paths, m->tensor_count, sizeof(char *))) {
        free(own_name);
        free(path);
        free_unadded(t);
        td_fail(TD_E_NOMEM, "no memory to add '%s' to %s", name, m->type->name);
        give_up(m);
        return NULL;
    }
    td_node_of(m)->tensor_paths[m->tensor_count] = path;
    m->tensors[m->tensor_count++] =
        (td_named_tensor){ .name = own_name, .tensor = t, .buffer = buffer };
    t->name = path;
    t->lent = true; /* the module frees it */
    return t;
}

td_tensor *td_module_parameter_at(td_module *m, const char *name, td_tensor *t, td_site at)
{
    t = add_tensor(m, name, t, false, at);
    if (t != NULL && !td_is_leaf(t)) {
        td_requires_grad(t, true);
    }
    return t;
}

td_tensor *td_module_buffer_at(td_module *m, const char *name, td_tensor *t, td_site at)
{
    return add_tensor(m, name, t, true, at);
}

td_tensor *td_module_new_parameter_at(td_module *m, const char *name, td_shape shape,
                                      td_layout layout, td_site at)
{
    return td_module_parameter_at(m, name, td_init_new(shape, layout), at);
}

td_module *td_module_finish(td_module *m)
{
    if (m != NULL && td_node_of(m)->failed) {
        td_module_free(m);
        return NULL;
    }
    return m;
}

td_module *td_module_finish_with(td_module *m, const void *state)
{
    if (m != NULL) {
        memcpy(m->state, state, td_node_of(m)->state_size);
    }
    return td_module_finish(m);
}

/* Clears a tensor's entries in a tree: a shared tensor has several. */
static void forget_tensor(td_module *top, const td_tensor *t)
{
    for (td_module *m = top; m != NULL; m = td_module_next(top, m)) {
        for (int i = 0; i < m->tensor_count; i++) {
            if (m->tensors[i].tensor == t) {
                m->tensors[i].tensor = NULL;
            }
        }
    }
}

/* Each once, although several modules below `top` may share it. */
static void free_tensors(td_module *top, td_module *m)
{
    for (int i = 0; i < m->tensor_count; i++) {
        td_tensor *t = m->tensors[i].tensor;
        if (t != NULL) {
            forget_tensor(top, t);
            t->lent = false;
            td_free(t);
        }
    }
}

static void end_arounds(td_module *m)
{
    for (const td_around *a; (a = td_node_of(m)->around) != NULL;) {
        td_module_unsurround(m, a->run, a->user);
    }
}

static void free_nodes(td_module *m, td_site at)
{
    for (int i = 0; i < m->child_count; i++) {
        free_nodes(m->children[i], at);
    }
    if (m->type->free != NULL) {
        m->type->free(m);
    }
    td_params_free(td_node_of(m)->params, at);
    free_node(td_node_of(m));
}

void td_module_free_at(td_module *top, td_site at)
{
    if (top == NULL) {
        return;
    }
    TD_REQUIRE(!td_module_is_freed(top), at, "td_module_free: the module was freed already");
    TD_REQUIRE(td_node_of(top)->parent == NULL, at,
               "td_module_free: '%s' belongs to a larger model; free that", td_node_of(top)->path);
    for (td_module *m = top; m != NULL; m = td_module_next(top, m)) {
        end_arounds(m);
    }
    for (td_module *m = top; m != NULL; m = td_module_next(top, m)) {
        free_tensors(top, m);
    }
    free_nodes(top, at);
}
