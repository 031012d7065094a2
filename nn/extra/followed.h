/* A model's buffers (running statistics), each with a copy that follows it: what averages of
 * weights and lookahead keep beside the flat parameters. Users do not include this. */
#ifndef TD_NN_EXTRA_FOLLOWED_H
#define TD_NN_EXTRA_FOLLOWED_H

#include "nn/nn.h"
#include "tensor/kernel_types.h"

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

/* A header over a dense tensor's elements [begin, begin + count), in the order of memory, for the
 * time of a kernel's call: it takes no hold. */
td_tensor td_followed_part(const td_tensor *t, int64_t begin, int64_t count);

/* average = decay average + (1 - decay) value, by a slice of that decay; what is no float is
 * copied. In a captured step the slice is one of td_step_numbers (tensor/hooks.h). A step of
 * descent on (average - value)^2 / 2, whose gradient is average - value: the device's SGD does it
 * in one pass. */
td_optim_slice td_follow_slice(const td_tensor *average, double decay);
void td_follow(td_tensor *average, const td_tensor *value, const td_optim_slice *slice,
               const char *what); /* for messages: who writes */

#endif
