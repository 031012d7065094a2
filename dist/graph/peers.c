/* A captured step of several ranks: its agreement and its collectives (tensor/graph/captured.h). */
#include "dist/comm/group.h"

#include "tensor/clock.h"
#include "dist/graph/captured.h"

#include <stdlib.h>

/* The numbers go over the CPU engine, which the step's own collectives do not use. */
static td_status least_of(void *user, int mine, int *least, int *whose)
{
    td_group *group = user;
    int32_t value = mine * group->size + group->rank;
    td_collective c = { .kind = TD_COLLECTIVE_ALL_REDUCE,
                        .dtype = TD_I32,
                        .op = TD_MIN,
                        .in = &value,
                        .out = &value,
                        .count = 1 };
    TD_TRY(td_submit(group, &c, 0, NULL));
    *least = value / group->size;
    *whose = value % group->size;
    return TD_OK;
}

/* For the watchdog a launched graph is one collective. */
static td_status peers_note_launch(td_group *group, td_device_engine *e)
{
    td_collective c = { .kind = TD_COLLECTIVE_REPLAY,
                        .number = ++group->device_collectives,
                        .deadline = td_clock() + group->timeout };
    return e->type->launched(e, &c);
}

static td_status on_event(void *user, td_captured_event event)
{
    td_group *group = user;
    td_device_engine *e = group->device_engine;
    switch (event) {
    case TD_CAPTURED_BEGINS: /* recorded work cannot wait for work outside of the recording */
    case TD_CAPTURED_RECORDED:
        return td_device_join_all(group);
    case TD_CAPTURED_RECORDS:
    case TD_CAPTURED_ENDS:
        return e != NULL ? e->type->record(e, event == TD_CAPTURED_RECORDS) : TD_OK;
    case TD_CAPTURED_LAUNCHED:
        return e != NULL ? peers_note_launch(group, e) : TD_OK;
    case TD_CAPTURED_READ:
        break;
    }
    return td_group_check(group);
}

const td_captured_peers *td_group_captured(td_group *group)
{
    group = td_group_or_world(group);
    if (group->captured == NULL) {
        group->captured = malloc(sizeof *group->captured);
        TD_REQUIRE(group->captured != NULL, TD_NOWHERE, "out of memory for a captured step");
        *group->captured = (td_captured_peers){ least_of, on_event, group };
    }
    return group->captured;
}
