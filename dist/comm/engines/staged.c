/* Collectives on a GPU's memory through the host and the group's CPU engine: if NCCL is missing, if
 * two ranks share a GPU, and for all messages. */
#include "dist/comm/group.h"

#include <stdlib.h>

struct td_host_copy {
    td_host_copy *next; /* in the group's list of unused ones */
    size_t room;        /* bytes of memory */
    td_device device;
    void *target; /* on the device; nothing comes back if bytes is 0 */
    size_t bytes;
    char *result;
    char memory[];
};

/* Memory with enough room, used again or new. */
static td_host_copy *staged_take(td_group *group, size_t bytes)
{
    pthread_mutex_lock(&group->queue.lock);
    td_host_copy **link = &group->unused_staged;
    while (*link != NULL && (*link)->room < bytes) {
        link = &(*link)->next;
    }
    td_host_copy *staged = *link;
    if (staged != NULL) {
        *link = staged->next;
    }
    pthread_mutex_unlock(&group->queue.lock);
    if (staged == NULL && (staged = malloc(sizeof *staged + bytes)) != NULL) {
        staged->room = bytes;
    }
    if (staged != NULL) {
        staged->next = NULL;
    }
    return staged;
}

td_status td_staged_end(td_group *group, td_host_copy *staged, td_status status)
{
    if (status == TD_OK && staged->bytes > 0) {
        td_memory_upload(staged->device, staged->target, staged->result, staged->bytes);
    }
    pthread_mutex_lock(&group->queue.lock);
    staged->next = group->unused_staged;
    group->unused_staged = staged;
    pthread_mutex_unlock(&group->queue.lock);
    return status;
}

td_status td_staged_submit(td_group *group, const td_collective *c, td_device device,
                           td_work **work)
{
    size_t piece = (size_t)c->count * td_dtype_size(c->dtype);
    size_t in = piece * (size_t)td_pieces_given(c, group->rank, group->size);
    size_t out = piece * (size_t)td_pieces_taken(c, group->rank, group->size);
    td_host_copy *staged = staged_take(group, in + out + 1);
    TD_CHECK(staged != NULL, TD_E_NOMEM,
             "no memory on the host for a collective of %zu bytes on %s", in > out ? in : out,
             td_device_name(device));
    staged->device = device;
    staged->target = c->out;
    staged->bytes = out;
    staged->result = staged->memory + (c->in == c->out ? 0 : in);
    if (in > 0) {
        td_memory_download(device, staged->memory, c->in, in);
    }
    td_collective host = *c;
    host.in = staged->memory;
    host.out = staged->result;
    td_status status = td_submit(group, &host, 0, work);
    if (status != TD_OK) {
        return td_staged_end(group, staged, status);
    }
    (*work)->staged = staged;
    return TD_OK;
}

void td_staged_free(td_host_copy *list)
{
    while (list != NULL) {
        td_host_copy *next = list->next;
        free(list);
        list = next;
    }
}
