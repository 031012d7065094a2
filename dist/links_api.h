/* What the gloo and mpi engines want of their libraries, in C: links to all other ranks, and
 * transfers of memory over them. Each is implemented in a shared object of its own (gloo/shim.cc,
 * mpi/), which is loaded only when it is asked for, so that tandem itself needs neither.
 *
 * A transfer takes place when one rank has called send and the other recv, with the same slot and
 * as many bytes; those of one slot between two ranks meet in order. Neither call waits. */
#ifndef TD_DIST_LINKS_API_H
#define TD_DIST_LINKS_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct td_links td_links; /* the links of one group */
typedef struct td_links_buffer
    td_links_buffer; /* a piece of memory that is sent or received into */

typedef enum td_links_result {
    TD_LINKS_OK,
    TD_LINKS_NOT_YET, /* only of polled buffers */
    TD_LINKS_TIMEOUT, /* after which the links are of no use */
    TD_LINKS_FAILED,  /* a link is closed, or worse: error() says it in the library's words */
    TD_LINKS_REFUSED, /* only of open: the process was started in a wrong way; error() says how */
} td_links_result;

typedef enum td_links_manner {
    TD_LINKS_WAITS,
    TD_LINKS_POLLED, /* the waits do not wait */
    /* Polled, too; what is received is the other side's last message: after it, transfers with that
     * rank that do not come to an end fail. (With gloo, a rank that goes closes its links.) */
    TD_LINKS_LAST,
} td_links_manner;

typedef struct td_links_options {
    int rank, size;
    const char *address; /* numeric, of this host, for the other ranks */
    double timeout;      /* seconds until all links stand */
    /* The store; both return 0 if it worked. A value that came by get goes back by release. */
    void *store;
    int (*set)(void *store, const char *key, const void *value, size_t size);
    int (*get)(void *store, const char *key, double timeout, void **value, size_t *size);
    void (*release)(void *value);
} td_links_options;

enum { TD_LINKS_VERSION = 3 };

typedef struct td_links_api {
    int version;
    const char *name;   /* of the library: "gloo" */
    size_t piece_bytes; /* of large arrays, so many go at a time */
    td_links_result (*open)(td_links **links, const td_links_options *options);
    /* NULL: out of memory. */
    td_links_buffer *(*buffer)(td_links *links, void *memory, size_t bytes, td_links_manner manner);
    void (*buffer_free)(td_links_buffer *buffer); /* its memory is not touched any more */
    td_links_result (*send)(td_links_buffer *buffer, int rank, uint64_t slot, size_t offset,
                            size_t bytes);
    td_links_result (*recv)(td_links_buffer *buffer, int rank, uint64_t slot, size_t offset,
                            size_t bytes);
    /* For the end of one of the buffer's sends (receives); those with one rank end in the order in
     * which they were begun. */
    td_links_result (*wait_send)(td_links_buffer *buffer, double seconds);
    td_links_result (*wait_recv)(td_links_buffer *buffer, double seconds);
    /* From now on the waits are on a thread of their own (true), whose core is wanted elsewhere, or
     * in the program's way. NULL: there is no difference. */
    void (*in_background)(td_links *links, bool background);
    const char *(*error)(void); /* of this thread's last call that failed */
    /* Closes all links: what waits or is called later fails. Any thread. */
    void (*interrupt)(td_links *links, const char *reason);
    void (*close)(td_links *links); /* after its buffers */
    /* CPU seconds of the library's own threads, those of all groups; NULL: it has none. */
    double (*cpu_seconds)(void);
} td_links_api;

/* The only symbol that is looked up: TD_LINKS_ENTRY. */
const td_links_api *td_links_entry(void);
#define TD_LINKS_ENTRY "td_links_entry"

#ifdef __cplusplus
}
#endif

#endif
