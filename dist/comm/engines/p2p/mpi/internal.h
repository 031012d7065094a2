/* libtandem-mpi.so, internal: shared by group.c (MPI's beginning and end, a group's communicator)
 * and shim.c (transfers and buffers). */
#pragma once

#include "dist/comm/engines/p2p/api.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    TD_MPI_ERROR_BYTES = MPI_MAX_ERROR_STRING + 256,
    TD_MPI_LEAST_TAG_BITS = 15, /* the MPI standard's minimum */
};

typedef struct td_mpi_transfer {
    struct td_mpi_transfer *next;
    MPI_Request request;
    int rank;
    bool sends;
} td_mpi_transfer;

struct td_p2p_buffer {
    td_p2p *p2p;
    char *memory;
    td_p2p_manner manner;
    td_mpi_transfer *transfers;      /* running, in the order in which they began */
    struct td_p2p_buffer *next_last; /* in the list of buffers for last messages */
    int last_of;                     /* the rank whose last message the buffer is for */
};

struct td_p2p {
    MPI_Comm comm;
    int size, tag_bits;
    bool background, failed;
    td_p2p_buffer *lasts;
    atomic_bool interrupted;
    char reason[512];
    double gone[]; /* by rank: when its last message arrived; 0: not yet */
};

extern pthread_mutex_t td_mpi_lock; /* around calls of MPI and all lists */
extern int td_mpi_groups;           /* number of open groups */
extern bool td_mpi_spoilt; /* a rank has not answered: MPI_Finalize might wait for it forever */

/* This thread's last failure. */
extern _Thread_local char td_mpi_error[TD_MPI_ERROR_BYTES];
td_p2p_result td_mpi_fail(const char *what);
td_p2p_result td_mpi_check(int code, const char *call); /* fails if code is an MPI error */

td_p2p_result td_mpi_open(td_p2p **p2p, const td_p2p_options *options);
void td_mpi_close(td_p2p *p2p);
