/* What the gloo engine wants of libgloo, a C++ library, in C: links to all other ranks, and
 * transfers of memory over them. Built into libtandem-gloo.so, which is loaded only when gloo is
 * asked for, so that tandem itself needs neither C++ nor libgloo.
 *
 * A transfer takes place when one rank has called send and the other recv, with the same slot and
 * as many bytes; those of one slot between two ranks meet in order. Neither call waits. */
#ifndef TD_DIST_GLOO_SHIM_H
#define TD_DIST_GLOO_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct td_gloo td_gloo;               /* the links of one group */
typedef struct td_gloo_buffer td_gloo_buffer; /* a piece of memory that is sent or received into */

typedef enum td_gloo_result {
    TD_GLOO_OK,
    TD_GLOO_NOT_YET, /* only of polled buffers */
    TD_GLOO_TIMEOUT, /* which closes all links */
    TD_GLOO_FAILED,  /* a link is closed, or worse: error() says it in libgloo's words */
} td_gloo_result;

typedef struct td_gloo_options {
    int rank, size;
    const char *address; /* numeric, of this host, for the other ranks */
    double timeout;      /* seconds until all links stand */
    /* The store; both return 0 if it worked. A value that came by get goes back by release. */
    void *store;
    int (*set)(void *store, const char *key, const void *value, size_t size);
    int (*get)(void *store, const char *key, double timeout, void **value, size_t *size);
    void (*release)(void *value);
} td_gloo_options;

enum { TD_GLOO_VERSION = 1 };

typedef struct td_gloo_api {
    int version;
    td_gloo_result (*open)(td_gloo **gloo, const td_gloo_options *options);
    /* The waits of a polled buffer do not wait. NULL: out of memory. */
    td_gloo_buffer *(*buffer)(td_gloo *gloo, void *memory, size_t bytes, bool polled);
    void (*buffer_free)(td_gloo_buffer *buffer); /* its memory is not touched any more */
    td_gloo_result (*send)(td_gloo_buffer *buffer, int rank, uint64_t slot, size_t offset,
                           size_t bytes);
    td_gloo_result (*recv)(td_gloo_buffer *buffer, int rank, uint64_t slot, size_t offset,
                           size_t bytes);
    /* For the end of one of the buffer's sends (receives), whichever ends first. */
    td_gloo_result (*wait_send)(td_gloo_buffer *buffer, double seconds);
    td_gloo_result (*wait_recv)(td_gloo_buffer *buffer, double seconds);
    const char *(*error)(void); /* of this thread's last call that failed */
    /* Closes all links: what waits or is called later fails. Any thread. */
    void (*interrupt)(td_gloo *gloo, const char *reason);
    void (*close)(td_gloo *gloo); /* after its buffers */
} td_gloo_api;

/* The only symbol that is looked up: TD_GLOO_ENTRY. */
const td_gloo_api *td_gloo_entry(void);
#define TD_GLOO_ENTRY "td_gloo_entry"

#ifdef __cplusplus
}
#endif

#endif
