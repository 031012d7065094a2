/* Lists of hooks that may change while they run. */
#include "autograd/leaf.h"

#include "tensor/system/list.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Ids count through all lists, so that an old id never names a newer hook, also where a list was
 * emptied and filled again. */
static _Atomic int last_id;

static bool is_removed(const td_hook *hook)
{
    return hook->ready == NULL && hook->end == NULL;
}

int td_hooks_add(td_hook_list *list, td_hook hook)
{
    TD_CHECK(td_grow(&list->hooks, list->count, sizeof hook), TD_E_NOMEM, "no memory for a hook");
    hook.id = atomic_fetch_add(&last_id, 1) + 1;
    list->hooks[list->count++] = hook;
    return hook.id;
}

/* Takes removed hooks out of the array, unless the list is running: then no hook may move. */
static void sweep(td_hook_list *list)
{
    if (list->running > 0) {
        return;
    }
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        if (!is_removed(&list->hooks[i])) {
            list->hooks[kept++] = list->hooks[i];
        }
    }
    list->count = kept;
    if (kept == 0) {
        td_hooks_free(list);
    }
}

void td_hooks_remove(td_hook_list *list, int id)
{
    for (int i = 0; i < list->count; i++) {
        if (list->hooks[i].id == id) {
            list->hooks[i].ready = NULL;
            list->hooks[i].end = NULL;
        }
    }
    sweep(list);
}

bool td_hooks_have(const td_hook_list *list, int id)
{
    bool have = false;
    for (int i = 0; i < list->count; i++) {
        have = have || (list->hooks[i].id == id && !is_removed(&list->hooks[i]));
    }
    return have;
}

/* Hooks are copied before they are called: the array may move when one adds another. */
void td_hooks_run(td_hook_list *list, td_tensor *leaf)
{
    list->running++;
    for (int i = 0, count = list->count; i < count; i++) {
        td_hook hook = list->hooks[i];
        if (hook.ready != NULL) {
            hook.ready(leaf, hook.user);
        } else if (hook.end != NULL) {
            hook.end(hook.user);
        }
    }
    list->running--;
    sweep(list);
}

void td_hooks_free(td_hook_list *list)
{
    free(list->hooks);
    list->hooks = NULL;
    list->count = 0;
}
