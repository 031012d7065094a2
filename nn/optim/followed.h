/* A model's buffers (running statistics), each with a copy that follows it: what averages of
 * weights and lookahead keep beside the flat parameters. Users do not include this. */
#ifndef TD_NN_OPTIM_FOLLOWED_H
#define TD_NN_OPTIM_FOLLOWED_H

#include "nn/nn.h"

typedef struct td_followed {
    char *name;       /* its path in the model, the first if it has several; owned */
    td_tensor *value; /* the model's */
    td_tensor *copy;  /* owned; begins as the value is */
} td_followed;

typedef struct td_followed_list {
    td_followed *items;
    int count;
} td_followed_list;

/* Each of the model's buffers once. TD_E_NOMEM: what there is of the list is still to be freed. */
td_status td_followed_buffers(td_module *model, td_followed_list *list);
void td_followed_free(td_followed_list *list);

#endif
