/* What the gloo and mpi engines need from their libraries, in C: point-to-point connections
 * to all other ranks, and transfers of memory over them. Each library has a shared object
 * (gloo/shim.cc, mpi/) that is loaded on demand, so tandem itself needs neither library.
 *
 * A transfer takes place when one rank has called send and the other recv with the same slot and
 * the same number of bytes. Transfers of one slot between two ranks match in order. Neither call
 * waits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct td_p2p td_p2p;               /* the connections of one group */
typedef struct td_p2p_buffer td_p2p_buffer; /* a piece of memory that is sent or received into */

typedef enum td_p2p_result {
    TD_P2P_OK,
    TD_P2P_NOT_YET, /* only of polled buffers */
    TD_P2P_TIMEOUT, /* afterwards the connections cannot be used */
    TD_P2P_FAILED,  /* a link is closed or failed: error() has the library's message */
    TD_P2P_REFUSED, /* only from open: the process was started in a wrong way (error()) */
} td_p2p_result;

typedef enum td_p2p_manner {
    TD_P2P_WAITS,
    TD_P2P_POLLED, /* wait_send and wait_recv do not wait */
    /* Polled, and for the other rank's last message: once it has arrived, unfinished transfers with
     * that rank fail. (With gloo, a rank that leaves closes its connections.) */
    TD_P2P_LAST,
} td_p2p_manner;

typedef struct td_p2p_options {
    int rank, size;
    const char *address; /* numeric, of this host, for the other ranks */
    double timeout;      /* seconds until all ranks are connected */
    /* The store. set and get return 0 on success. release frees a value from get. */
    void *store;
    int (*set)(void *store, const char *key, const void *value, size_t size);
    int (*get)(void *store, const char *key, double timeout, void **value, size_t *size);
    void (*release)(void *value);
} td_p2p_options;

enum { TD_P2P_VERSION = 3 };

typedef td_p2p_result (*td_p2p_transfer_fn)(td_p2p_buffer *buffer, int rank, uint64_t slot,
                                            size_t offset, size_t bytes);

typedef struct td_p2p_api {
    int version;
    const char *name;   /* of the library: "gloo" */
    size_t piece_bytes; /* large arrays are sent in pieces of this size */
    td_p2p_result (*open)(td_p2p **p2p, const td_p2p_options *options);
    /* NULL: out of memory. */
    td_p2p_buffer *(*buffer)(td_p2p *p2p, void *memory, size_t bytes, td_p2p_manner manner);
    void (*buffer_free)(td_p2p_buffer *buffer); /* afterwards its memory is not touched */
    td_p2p_transfer_fn send, recv;
    /* Waits for the end of one of the buffer's sends or receives. Those with one rank end in the
     * order in which they began. */
    td_p2p_result (*wait_send)(td_p2p_buffer *buffer, double seconds);
    td_p2p_result (*wait_recv)(td_p2p_buffer *buffer, double seconds);
    /* true: from now on the communication thread waits, whose core others need; false: the program
     * itself waits. NULL: the library makes no difference. */
    void (*in_background)(td_p2p *p2p, bool background);
    const char *(*error)(void); /* of this thread's last call that failed */
    /* Closes all connections: running and later calls fail. Any thread. */
    void (*interrupt)(td_p2p *p2p, const char *reason);
    void (*close)(td_p2p *p2p); /* after its buffers are freed */
    /* CPU seconds of the library's own threads, for all groups together; NULL: it has none. */
    double (*cpu_seconds)(void);
} td_p2p_api;

/* The only symbol that is looked up: TD_P2P_ENTRY. */
const td_p2p_api *td_p2p_entry(void);
#define TD_P2P_ENTRY "td_p2p_entry"

#ifdef __cplusplus
}
#endif
