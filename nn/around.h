/* Functions that run around a module's forward. The summary, recomputation, DDP and DataParallel
 * are such functions. Several functions may surround a module; the last one added is the outermost.
 * A module that is surrounded is not fused with its neighbours (a convolution with its
 * normalisation). */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

/* The rest of a forward: the functions further inside, then the module's own forward. The struct is
 * a plain value: you may copy it and run it again, as long as the module lives and nothing is added
 * around it or removed. The fields are for the library. */
typedef struct td_around_rest {
    td_module *m;
    const struct td_around *next;
    td_site at;
    td_tensor *second; /* td_forward2's second input; otherwise NULL */
} td_around_rest;
/* Runs the rest for an input and returns its result. */
td_tensor *td_run_rest(const td_around_rest *rest, td_tensor *x);

/* Returns the module's result for x: calls td_run_rest once, or never, or for another input. */
typedef td_tensor *(*td_around_fn)(const td_around_rest *rest, td_tensor *x, void *user);

typedef struct td_around {
    td_around_fn run;
    /* Called when the function is removed, or when td_module_free begins: the module and all below
     * are still whole. May be NULL. */
    void (*free)(void *user);
    void *user;
    /* Who wraps the module to train on several devices, for messages ("td_ddp"); NULL: others. */
    const char *wrapper;
    /* For a function that brings the module's values only while the module runs: brings all values
     * (here), or releases them again. NULL: the values are always here. */
    td_status (*gather)(bool here, void *user);
    /* td_module_clone surrounds the copy by the same function, with the same user; only the
     * original frees it. */
    bool copies;
    bool inside; /* becomes the innermost function, inside of all that were added before */
    const struct td_around *next; /* for the library */
} td_around;

/* Adds a function as the outermost one (but see `inside`); `around` is copied. TD_E_NOMEM: no
 * memory. td_module_unsurround removes the function with this run and user. */
td_status td_module_surround(td_module *m, const td_around *around);
void td_module_unsurround(td_module *m, td_around_fn run, const void *user);
/* Brings all values of m for reading, or releases them again: calls `gather` of the functions
 * around m. */
td_status td_module_gather(td_module *m, bool here);
/* The wrapper of a function around m; NULL: none. */
const char *td_module_wrapper(const td_module *m);
/* Whether any function surrounds m; and the user of the outermost function with this run, NULL if
 * there is none. */
bool td_is_surrounded(const td_module *m);
void *td_surrounded_by(const td_module *m, td_around_fn run);

TD_END_C
