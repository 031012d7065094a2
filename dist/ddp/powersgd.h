/* PowerSGD, internal: codec_powersgd.c computes, codec_powersgd_state.c keeps the state. */
#ifndef TD_DIST_DDP_POWERSGD_H
#define TD_DIST_DDP_POWERSGD_H

#include "dist/codec.h"

struct td_powersgd_part; /* the state of one bucket */

typedef struct td_powersgd {
    td_group *group;
    td_params *params;
    int count; /* parameters */
    int64_t rank, start;
    td_tensor *error; /* the part of the gradients that was not sent yet, flat */
    struct td_powersgd_part *parts;
    bool remembered;        /* `factors` has the factors of all parts */
    td_tensor *steps;       /* i64 [2], on the CPU */
    td_tensor **factors;    /* each parameter's; NULL: the parameter travels as it is */
    td_named_tensor *items; /* the last list */
    int item_count, room;
} td_powersgd;

/* ---- codec_powersgd.c ---- */
/* Gives each matrix's Q to td_powersgd_keep. *parts: all parts; *sent: those that have a Q. */
void td_powersgd_remember_factors(td_powersgd *s, int *parts, int *sent);
/* The parts drop their factors and take them from a checkpoint. */
void td_powersgd_forget_parts(td_powersgd *s);

/* ---- codec_powersgd_state.c ---- */
td_status td_powersgd_open(td_group *group, td_params *params, const td_ddp_options *options,
                           void **state);
void td_powersgd_close(void *state);
bool td_powersgd_active(const td_powersgd *s); /* plain all-reduces come first */
void td_powersgd_stepped(void *state);
void td_powersgd_remember(td_powersgd *s);
/* Whether a parameter, as a matrix [n,m], travels as factors; and the rank of the factors. */
bool td_powersgd_compresses(const td_powersgd *s, int param, int64_t *n, int64_t *m);
int64_t td_powersgd_rank(const td_powersgd *s, int64_t n, int64_t m);
/* Copies a parameter's Q [m,r] to the kept factors, or back if a checkpoint has brought one. */
void td_powersgd_keep(td_powersgd *s, int param, const td_tensor *q);
void td_powersgd_recall(const td_powersgd *s, int param, td_tensor *q);
td_status td_powersgd_list(void *state, bool save, const td_named_tensor **tensors, int *count);
const td_tensor *td_powersgd_own(void *state);

#endif
