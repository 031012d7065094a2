/* Captured and autotuned steps of several processes (tensor/graph/captured.h, tensor/autotune.h).
 */
#ifndef TD_DIST_CAPTURED_H
#define TD_DIST_CAPTURED_H

#include "dist/dist.h"
#include "tensor/autotune.h"
#include "tensor/graph/captured.h"

TD_BEGIN_C

/* For td_captured_options.peers: a step that has collectives of GPUs' memory by NCCL (td_ddp's) is
 * captured if it can be on all ranks of the group (NULL: the world), which must all call
 * td_captured_run; where collectives go by way of the host, it is done as ever. A rank that dies
 * ends td_captured_run and td_captured_next of the others with TD_E_PEER or TD_E_TIMEOUT. Lives as
 * long as the group. */
const td_captured_peers *td_group_captured(td_group *group);

/* td_autotune_choose for several processes: rank 0 chooses, and all take its choices, so that equal
 * shapes are computed alike everywhere. Collective: all ranks call it at the same place, after the
 * first step of the run. Group NULL: the world, or this process alone before td_dist_init. figures
 * (or NULL): rank 0's, and zeros elsewhere. */
td_status td_autotune_agree(td_group *group, td_autotune_figures *figures);

TD_END_C

#endif
