/* Copies of modules. A module's state is a plain struct that no table describes; it is copied byte
 * by byte, and each word in it that is the address of a module or tensor of the model becomes the
 * address of that one's copy. (An integer that happens to equal such an address would be changed as
 * well; addresses of live memory are no numbers that a layer counts with.) */
#include "autograd/tape.h"
#include "nn/internal.h"
#include "tensor/system/list.h"

#include <stdlib.h>
#include <string.h>

/* What became of an address. */
typedef struct moved {
    const void *from;
    void *to;
} moved;

typedef struct cloning {
    moved *list;
    int count;
} cloning;

static bool remember(cloning *c, const void *from, void *to)
{
    if (!td_grow(&c->list, c->count, sizeof *c->list)) {
        td_fail(TD_E_NOMEM, "no memory to copy a model");
        return false;
    }
    c->list[c->count++] = (moved){ from, to };
    return true;
}

static void *copy_of(const cloning *c, const void *from)
{
    for (int i = 0; i < c->count; i++) {
        if (c->list[i].from == from) {
            return c->list[i].to;
        }
    }
    return NULL;
}

/* The copy of a tensor, made at its first mention. NULL when memory is short. */
static td_tensor *clone_tensor(cloning *c, const td_tensor *t)
{
    td_tensor *copy = copy_of(c, t);
    if (copy == NULL) {
        copy = td_clone(t);
        if (copy != NULL && !remember(c, t, copy)) {
            td_free(copy);
            copy = NULL;
        }
    }
    return copy;
}

static void clone_tensors(cloning *c, td_module *to, const td_module *from)
{
    for (int i = 0; i < from->tensor_count; i++) {
        const td_named_tensor *item = &from->tensors[i];
        td_tensor *copy = clone_tensor(c, item->tensor);
        if (item->buffer) {
            td_module_buffer(to, item->name, copy);
        } else {
            td_module_parameter(to, item->name, copy);
        }
        if (copy != NULL) {
            td_requires_grad(copy, td_is_leaf(item->tensor));
        }
        if (td_node_of(to)->failed) {
            return;
        }
    }
}

/* From the innermost to the outermost; each is added outside of the others. */
static bool clone_arounds(td_module *to, const td_around *a)
{
    if (a == NULL) {
        return true;
    }
    td_around copy = *a;
    copy.inside = false;
    copy.free = NULL; /* the user is the original's */
    return clone_arounds(to, a->next) && (!a->copies || td_module_surround(to, &copy) == TD_OK);
}

/* The tree with its tensors; the states still point into the original. A failure is marked in the
 * top, and all that was made hangs below it. */
static td_module *clone_tree(cloning *c, const td_module *from)
{
    size_t size = td_node_of(from)->state_size;
    td_module *to = td_module_new(from->type, size);
    if (to == NULL) {
        return NULL;
    }
    to->training = from->training;
    to->device = from->device;
    to->dtype = from->dtype;
    td_node_of(to)->part = td_node_of(from)->part;
    td_node_of(to)->recompute = td_node_of(from)->recompute;
    td_node_of(to)->record = td_node_of(from)->record;
    td_node_of(to)->failed = !clone_arounds(to, td_node_of(from)->around);
    clone_tensors(c, to, from);
    for (int i = 0; i < from->child_count && !td_node_of(to)->failed; i++) {
        td_module_add(to, from->children[i]->name, clone_tree(c, from->children[i]));
    }
    td_node_of(to)->failed |= !remember(c, from, to);
    return to;
}

static td_status clone_state(const cloning *c, td_module *to, const td_module *from)
{
    size_t size = td_node_of(from)->state_size;
    if (size > 0) {
        memcpy(to->state, from->state, size);
    }
    char *state = to->state;
    for (size_t at = 0; at + sizeof(void *) <= size; at += sizeof(void *)) {
        void *word;
        memcpy(&word, state + at, sizeof word);
        void *copy = word != NULL ? copy_of(c, word) : NULL;
        if (copy != NULL) {
            memcpy(state + at, &copy, sizeof copy);
        }
    }
    return from->type->copy != NULL ? from->type->copy(to, from) : TD_OK;
}

static td_status clone_states(const cloning *c, td_module *to, const td_module *from)
{
    td_status status = clone_state(c, to, from);
    for (int i = 0; i < from->child_count && status == TD_OK; i++) {
        status = clone_states(c, to->children[i], from->children[i]);
    }
    return status;
}

static const td_module *find_uncopyable(const td_module *m)
{
    if (m->type->free != NULL && m->type->copy == NULL) {
        return m;
    }
    for (int i = 0; i < m->child_count; i++) {
        const td_module *found = find_uncopyable(m->children[i]);
        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}

td_module *td_module_clone(const td_module *m)
{
    const td_module *uncopyable = find_uncopyable(m);
    TD_CHECK_NULL(uncopyable == NULL, TD_E_UNSUPPORTED,
                  "%s cannot be copied: its type frees memory of its own, so it must say how that "
                  "is copied (td_module_type.copy)",
                  td_node_of(uncopyable)->label);
    cloning c = { NULL, 0 };
    td_module *copy = td_module_finish(clone_tree(&c, m));
    if (copy != NULL && clone_states(&c, copy, m) != TD_OK) {
        td_module_free(copy);
        copy = NULL;
    }
    free(c.list);
    return copy;
}
