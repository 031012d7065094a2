/* Groups that are broken: after a failure every call fails with the first cause. */
#include "dist/comm/group.h"

#include <stdio.h>
#include <string.h>

void td_group_break(td_group *group, td_status status, const char *cause)
{
    pthread_mutex_lock(&group->queue.lock);
    if (atomic_load(&group->broken) == TD_OK) {
        bool labelled = strncmp(cause, group->label, strlen(group->label)) == 0;
        snprintf(group->cause, sizeof group->cause, "%s%s", labelled ? "" : group->label, cause);
        atomic_store(&group->broken, status);
    }
    pthread_mutex_unlock(&group->queue.lock);
    td_device_abort(group);
    if (group->engine != NULL && group->engine_type->abort != NULL) {
        group->engine_type->abort(group->engine, (td_status)atomic_load(&group->broken),
                                  group->cause);
    }
}

td_status td_group_fail(td_group *group, td_status status)
{
    td_group_break(group, status, td_last_error());
    return td_fail((td_status)atomic_load(&group->broken), "%s", group->cause);
}

td_status td_group_check(td_group *group)
{
    td_status status = (td_status)atomic_load(&group->broken);
    return status == TD_OK ? TD_OK
                           : td_fail(status, "the process group is broken: %s", group->cause);
}
