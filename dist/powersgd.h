/* PowerSGD from inside: codec_powersgd.c computes, codec_powersgd_state.c keeps. */
#ifndef TD_DIST_POWERSGD_H
#define TD_DIST_POWERSGD_H

#include "dist/codec.h"

struct td_powersgd_part; /* a bucket's */

typedef struct td_powersgd {
    td_group *group;
    td_params *params;
    int count; /* parameters */
    int64_t rank, start;
    td_tensor *error; /* what was not sent so far, flat */
    struct td_powersgd_part *parts;
    bool remembered;     /* the factors of all parts, before these go */
    td_tensor *steps;    /* i64 [2], on the CPU */
    td_tensor **factors; /* of each parameter; NULL: it travels as it is */
    td_tensor *gathered; /* [world, flat]: all ranks' errors, of the last saving */
    td_named_tensor *items; /* what was listed last */
    int item_count, room;
} td_powersgd;

/* ---- codec_powersgd.c ---- */
/* Gives each matrix' Q to td_powersgd_keep, and counts the parts that have any. */
void td_powersgd_remember_factors(td_powersgd *s, int *parts, int *sent);
void td_powersgd_forget_parts(td_powersgd *s); /* they go on with the factors that come */

/* ---- codec_powersgd_state.c ---- */
td_status td_powersgd_open(td_group *group, td_params *params, const td_ddp_options *options,
                           void **state);
void td_powersgd_close(void *state);
bool td_powersgd_active(const td_powersgd *s); /* plain all-reduces come first */
void td_powersgd_stepped(void *state);
void td_powersgd_remember(td_powersgd *s);
/* Whether a parameter, seen as a matrix [n,m], travels as factors; and of which rank. */
bool td_powersgd_compresses(const td_powersgd *s, int param, int64_t *n, int64_t *m);
int64_t td_powersgd_rank(const td_powersgd *s, int64_t n, int64_t m);
/* A parameter's Q [m,r] into what is kept; or back, if a checkpoint has brought one. */
void td_powersgd_keep(td_powersgd *s, int param, const td_tensor *q);
void td_powersgd_recall(const td_powersgd *s, int param, td_tensor *q);
td_status td_powersgd_list(void *state, bool save, const td_named_tensor **tensors, int *count);
const td_tensor *td_powersgd_own(void *state);

#endif
