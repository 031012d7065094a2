/* One collective of the gloo engine under way. */
#ifndef TD_DIST_GLOO_JOB_H
#define TD_DIST_GLOO_JOB_H

#include "dist/gloo.h"

typedef struct td_gloo_job {
    td_gloo_engine *g;
    const td_collective *c;
    size_t size;                            /* bytes of an element */
    td_gloo_buffer *in, *out;               /* the arrays of the caller */
    int64_t in_sends, out_sends, out_recvs; /* that have been posted and not waited for */
    td_gloo_buffer **scratch;               /* by rank: what it sends, to be summed */
} td_gloo_job;

/* Fails with the cause if a transfer has failed. */
td_status td_gloo_check(const td_gloo_job *j, td_gloo_result result);

uint64_t td_gloo_job_slot(const td_gloo_job *j, td_gloo_use use);

/* Elements from.. of the array in to rank r; of the array out from there. They do not wait. */
td_status td_gloo_send_in(td_gloo_job *j, int r, int64_t from, int64_t count);
td_status td_gloo_receive_out(td_gloo_job *j, td_gloo_use use, int r, int64_t from, int64_t count);

/* Waits for all that has been posted on the caller's arrays. */
td_status td_gloo_wait_arrays(td_gloo_job *j);

/* Waits until all ranks have told what they are to do; fails if it is not the same. */
td_status td_gloo_listen(const td_gloo_job *j);

/* All_reduce, reduce, reduce_scatter; the headers have been sent. */
td_status td_gloo_reduce(td_gloo_job *j);

#endif
