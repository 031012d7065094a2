/* Which step runs on this thread, and checks that a tensor can still be read. */
#include "tensor/alive.h"

#include "tensor/storage.h"

#include <stdio.h>

/* The thread's running step, or the last one. */
static _Thread_local struct {
    uint64_t number;
    bool open;
} step;

uint64_t td_step_enter(void)
{
    step.open = true;
    return ++step.number;
}

void td_step_leave(void)
{
    step.open = false;
}

bool td_in_step(void)
{
    return step.open;
}

uint64_t td_step_number(void)
{
    return step.open ? step.number : 0;
}

/* Whether t's memory can be read now (backward may read what a scope has released). */
static bool has_memory(const td_tensor *t)
{
    return t != NULL && t->storage != NULL && (t->step == 0 || t->step == td_step_number()) &&
           !t->storage->released;
}

static _Noreturn void report_stale(const td_tensor *t, td_site at)
{
    unsigned long long made = t->step, now = td_step_number();
    unsigned long long last = step.number;
    if (made > last) {
        td_fatal(at, "%s belongs to step %llu of another thread; this thread's last one is %llu",
                 td_label(t), made, last);
    }
    char running[64] = "no step runs now", older[80] = "";
    if (now != 0) {
        snprintf(running, sizeof running, "step %llu runs now", now);
    }
    if (made > TD_STEP_ROTATION) { /* the header was another tensor's before */
        snprintf(older, sizeof older, " (or, if the pointer is older, in step %llu or before)",
                 made - TD_STEP_ROTATION);
    }
    td_fatal(at,
             "%s was made in step %llu%s, which has ended (%s); to keep a result, td_clone it "
             "before td_step_end",
             td_label(t), made, older, running);
}

static _Noreturn void report_dead(const td_tensor *t, td_site at)
{
    if (t == NULL) {
        td_fatal(at, "NULL tensor: an earlier call failed: %s", td_last_reason());
    } else if (t->storage == NULL) {
        td_fatal(at, "this tensor has been freed (td_free): it must not be used any more");
    } else if (t->step == 0 && t->storage->kind == TD_STORAGE_LENT) {
        td_fatal(at,
                 "%s has no values yet: it was made after td_defer_init(true); td_ddp with "
                 ".strategy = td_zero(3) draws them, or make the model without td_defer_init",
                 td_label(t));
    } else if (t->step == 0) {
        td_fatal(at,
                 "%s is away: processes share it, and it is here only inside the forward and "
                 "backward of its module; td_unshard brings all values",
                 td_label(t));
    } else if (t->step != td_step_number()) {
        report_stale(t, at);
    } else if (t->let_go) {
        td_fatal(at,
                 "%s was made inside a module or scope that has ended (or gone on, td_scope_keep), "
                 "and is gone with it: return it from there (td_scope_end keeps one tensor), or "
                 "td_clone it before the end",
                 td_label(t));
    } else {
        td_fatal(at,
                 "%s has no memory any more: backward has used it for the last time and given its "
                 "memory back; td_clone it before td_backward",
                 td_label(t));
    }
}

void td_check_alive(const td_tensor *t, td_site at)
{
    if (__builtin_expect(!has_memory(t) || t->let_go, 0)) {
        report_dead(t, at);
    }
}

void td_check_memory(const td_tensor *t, td_site at)
{
    if (!has_memory(t)) {
        report_dead(t, at);
    }
}
