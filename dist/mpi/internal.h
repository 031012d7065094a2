/* libtandem-mpi.so from inside: what group.c (MPI's beginning and end, a group's communicator) and
 * shim.c (transfers and buffers) share. */
#ifndef TD_DIST_MPI_INTERNAL_H
#define TD_DIST_MPI_INTERNAL_H

#include "dist/links_api.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    TD_MPI_ERROR_BYTES = MPI_MAX_ERROR_STRING + 256,
    TD_MPI_LEAST_TAG_BITS = 15, /* what MPI promises */
};

typedef struct td_mpi_transfer {
    struct td_mpi_transfer *next;
    MPI_Request request;
    int rank;
    bool sends;
} td_mpi_transfer;

struct td_links_buffer {
    td_links *links;
    char *memory;
    td_links_manner manner;
    td_mpi_transfer *transfers;        /* under way, in the order of their beginning */
    struct td_links_buffer *next_last; /* in the list of those for last messages */
    int last_of; /* a buffer for a last message: the rank that it comes from */
};

struct td_links {
    MPI_Comm comm;
    int size, tag_bits;
    bool background, failed;
    td_links_buffer *lasts;
    double *gone;            /* by rank: when its last message was seen, 0: not yet */
    td_mpi_transfer *unused; /* to be used again */
    atomic_bool interrupted;
    char reason[512];
};

extern pthread_mutex_t td_mpi_lock; /* around MPI, and all lists */
extern int td_mpi_groups;           /* that are open */
extern bool td_mpi_spoilt; /* ranks have not answered: MPI_Finalize might wait for them for ever */

/* This thread's last failure. */
extern _Thread_local char td_mpi_error[TD_MPI_ERROR_BYTES];
td_links_result td_mpi_fail(const char *what);
td_links_result td_mpi_check(int code, const char *call); /* an MPI code, and whose it is */

td_links_result td_mpi_open(td_links **links, const td_links_options *options);
void td_mpi_close(td_links *links);

#endif
