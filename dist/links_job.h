/* One collective of the gloo and mpi engines under way. */
#ifndef TD_DIST_GLOO_JOB_H
#define TD_DIST_GLOO_JOB_H

#include "dist/links.h"

typedef struct td_links_job {
    td_links_engine *g;
    const td_collective *c;
    size_t size;                            /* bytes of an element */
    td_links_buffer *in, *out;              /* the arrays of the caller */
    int64_t in_sends, out_sends, out_recvs; /* that have been posted and not waited for */
    td_links_buffer **scratch;              /* by rank: what it sends, to be summed */
} td_links_job;

/* Fails with the cause if a transfer has failed. */
td_status td_links_check(const td_links_job *j, td_links_result result);

uint64_t td_links_job_slot(const td_links_job *j, td_links_use use);

/* Elements from.. of the array in to rank r; of the array out from there. They do not wait. */
td_status td_links_send_in(td_links_job *j, int r, int64_t from, int64_t count);
td_status td_links_receive_out(td_links_job *j, td_links_use use, int r, int64_t from,
                               int64_t count);

/* Waits for all that has been posted on the caller's arrays. */
td_status td_links_wait_arrays(td_links_job *j);

/* Waits until all ranks have told what they are to do; fails if it is not the same. */
td_status td_links_listen(const td_links_job *j);

/* All_reduce, reduce, reduce_scatter; the headers have been sent. */
td_status td_links_reduce(td_links_job *j);

#endif
