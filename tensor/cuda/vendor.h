/* What the talkers to vendors' libraries share: workspace, and plans kept on disk. */
#pragma once

#include "tensor/tensor.h"

/* Memory for a call that is put on the compute stream now: up to TD_VENDOR_WORKSPACE bytes from one
 * block that all calls of a device share, more from td_scratch, in which case *scratch is not NULL
 * and is given back (td_scratch_free) after the call has been put on the stream. */
enum { TD_VENDOR_WORKSPACE = 32 << 20 };
void *td_vendor_workspace(td_device device, size_t bytes, void **scratch);

/* Plans on disk (tensor/tune/store.h), of GPUs like this one; before td_vendor_plans_open there are
 * none.
 */
void td_vendor_plans_open(td_device device, const char *owner);
char *td_vendor_plan_get(td_device device, const char *key, size_t *bytes);
void td_vendor_plan_put(td_device device, const char *key, const char *text, size_t bytes);
void td_vendor_plan_remove(td_device device, const char *key);
