/* What a step tells the parts that hang on it, and its first failure. */
#include "dist/ddp/ddp.h"

#include "dist/comm/collectives.h"
#include "tensor/system/list.h"

#include <stdio.h>

/* ---- parts ---- */

void td_ddp_add_part(td_ddp_state *s, td_ddp_part *part)
{
    *TD_LINK_TO(&s->parts, NULL) = part;
}

void td_ddp_remove_part(td_ddp_state *s, td_ddp_part *part)
{
    *TD_LINK_TO(&s->parts, part) = part->next;
    part->free(part);
}

td_ddp_part *td_ddp_find_part(const td_ddp_state *s, td_ddp_on_fn on)
{
    td_ddp_part *p = s->parts;
    while (p != NULL && p->on != on) {
        p = p->next;
    }
    return p;
}

void td_ddp_tell(td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit)
{
    for (td_ddp_part *p = s->parts; p != NULL; p = p->next) {
        td_ddp_note(s, p->on != NULL ? p->on(p, s, event, unit) : TD_OK);
    }
}

/* ---- failures ---- */

void td_ddp_note(td_ddp_state *s, td_status status)
{
    td_ddp_failure *f = &s->failure;
    if (status != TD_OK && f->status == TD_OK) {
        f->status = status;
        snprintf(f->message, sizeof f->message, "%s", td_last_error());
    }
}

void td_ddp_abort(const td_ddp_state *s, const char *cause)
{
    for (int k = 1; k < TD_DDP_GROUPS; k++) {
        if (s->groups[k] != NULL) {
            td_group_abort(s->groups[k], cause);
        }
    }
}

void td_ddp_break(td_ddp_state *s)
{
    if (s->failure.status != TD_OK) {
        td_ddp_abort(s, s->failure.message);
    }
}

void td_ddp_report(td_ddp_state *s)
{
    td_ddp_failure *f = &s->failure;
    td_status status = f->status;
    td_ddp_break(s);
    f->status = TD_OK;
    if (status != TD_OK && f->on_error != NULL) {
        f->on_error(status, f->message, f->user);
    } else if (status != TD_OK) {
        td_fatal((td_site){ NULL, 0 }, "DistributedDataParallel, rank %d: %s",
                 td_group_rank(s->group), f->message);
    }
}
