/* A running collective of the gloo and mpi engines. */
#pragma once

#include "dist/comm/engines/p2p/p2p.h"

typedef struct td_p2p_job {
    td_p2p_engine *g;
    const td_collective *c;
    size_t size;                            /* bytes of an element */
    td_p2p_buffer *in, *out;                /* the arrays of the caller */
    int64_t in_sends, out_sends, out_recvs; /* transfers that were posted and not waited for */
    td_p2p_buffer **scratch;                /* by rank: its data, to be summed here */
} td_p2p_job;

/* Fails with the cause if a transfer has failed. */
td_status td_p2p_check(const td_p2p_job *j, td_p2p_result result);

uint64_t td_p2p_job_slot(const td_p2p_job *j, td_p2p_use use);

/* Post, without waiting: a send of elements from `from` on of the array in to rank r; a receive of
 * elements of the array out from rank r. */
td_status td_p2p_send_in(td_p2p_job *j, int r, int64_t from, int64_t count);
td_status td_p2p_receive_out(td_p2p_job *j, td_p2p_use use, int r, int64_t from, int64_t count);

/* Waits for all posted transfers of the caller's arrays. */
td_status td_p2p_wait_arrays(td_p2p_job *j);

/* Waits for all ranks' headers; fails if one does not agree with this rank's. */
td_status td_p2p_listen(const td_p2p_job *j);

/* all_reduce, reduce, reduce_scatter, after the headers were sent. */
td_status td_p2p_reduce(td_p2p_job *j);
