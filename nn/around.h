/* Functions around a module's forward: summaries, recomputation, and dist's wrappers hang here. A
 * module that is run in another way than by td_forward (a convolution fused with its normalisation)
 * is not fused while something is around it. */
#ifndef TD_NN_AROUND_H
#define TD_NN_AROUND_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

/* What is inside: further arounds, then the module's own forward. A plain value: it may be kept,
 * and run again, as long as the module and what is around it stay. */
typedef struct td_around_rest {
    td_module *m;
    const struct td_around *next;
    td_site at;
    td_tensor *second; /* td_forward2's b, which goes on to the module; otherwise NULL */
} td_around_rest;
td_tensor *td_run_rest(const td_around_rest *rest, td_tensor *x);

typedef struct td_around {
    /* The module's result for x; in between it runs the rest: once, never, or on something else. */
    td_tensor *(*run)(const td_around_rest *rest, td_tensor *x, void *user);
    void (*free)(void *user); /* when the module or the around ends; NULL: nothing to do */
    void *user;
    bool copies; /* td_module_clone gives the copy the same, with the same user */
    const struct td_around *next;
} td_around;

/* Puts a function around all that is there. next is ignored. TD_E_NOMEM. */
td_status td_module_surround(td_module *m, const td_around *around);
void td_module_unsurround(td_module *m,
                          td_tensor *(*run)(const td_around_rest *, td_tensor *, void *),
                          const void *user);
bool td_is_surrounded(const td_module *m);

TD_END_C

#endif
