/* What the talkers to vendors' libraries share: workspace, plans kept on disk, notices. */
#ifndef TD_TENSOR_CUDA_VENDOR_H
#define TD_TENSOR_CUDA_VENDOR_H

#include "tensor/tensor.h"

/* A line on stderr, once for each different text. */
void td_vendor_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Memory for a call that is put on the compute stream now: up to TD_VENDOR_WORKSPACE bytes from one
 * block that all calls of a device share, more from td_scratch, in which case *scratch is not NULL
 * and is given back (td_scratch_free) after the call has been put on the stream. */
enum { TD_VENDOR_WORKSPACE = 32 << 20 };
void *td_vendor_workspace(td_device device, size_t bytes, void **scratch);

/* Plans on disk (plan_cache.h): $TANDEM_CACHE, $XDG_CACHE_HOME/tandem or ~/.cache/tandem, a file
 * for each owner. TANDEM_CACHE=off: none. A file that cannot be used is left alone with a notice.
 * New plans are written when the process ends, and now and then before. All are safe from any
 * thread. */
void td_vendor_plans_open(td_device device, const char *owner);
/* A copy, to be freed; NULL: there is none. */
char *td_vendor_plan_get(td_device device, const char *key, size_t *bytes);
void td_vendor_plan_put(td_device device, const char *key, const char *text, size_t bytes);
/* A plan that fails is not to be met again. */
void td_vendor_plan_remove(td_device device, const char *key);
/* Writes what is new. */
void td_vendor_plans_save(void);

#endif
