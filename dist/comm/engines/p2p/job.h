/* A running collective of the gloo and mpi engines. */
#pragma once

#include "dist/comm/engines/p2p/p2p.h"

/* Memory of a job, and how many of its transfers were posted and not waited for. */
typedef struct td_p2p_array {
    td_p2p_buffer *buffer;
    int64_t sends, recvs;
} td_p2p_array;

typedef struct td_p2p_job {
    td_p2p_engine *g;
    const td_collective *c;
    size_t size;           /* bytes of an element */
    td_p2p_array in, out;  /* the caller's */
    td_p2p_array *scratch; /* by rank: its data, to be summed here */
} td_p2p_job;

/* For `bytes` of memory; td_p2p_run closes the job's arrays. */
td_status td_p2p_open_array(td_p2p_job *j, td_p2p_array *a, const void *memory, size_t bytes);

/* Post a transfer of an array's elements from `from` on, to or from rank r, without waiting. */
td_status td_p2p_send(td_p2p_job *j, td_p2p_array *a, td_p2p_use use, int r, int64_t from,
                      int64_t count);
td_status td_p2p_receive(td_p2p_job *j, td_p2p_array *a, td_p2p_use use, int r, int64_t from,
                         int64_t count);

/* Wait for an array's earliest receive, and for all its transfers. */
td_status td_p2p_wait_receive(td_p2p_job *j, td_p2p_array *a);
td_status td_p2p_wait(td_p2p_job *j, td_p2p_array *a);

/* Waits for all ranks' headers; fails if one does not agree with this rank's. */
td_status td_p2p_listen(const td_p2p_job *j);

/* all_reduce, reduce, reduce_scatter, after the headers were sent. */
td_status td_p2p_reduce(td_p2p_job *j);
