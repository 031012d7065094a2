/* Captured and autotuned steps on several ranks (tensor/graph/captured.h, tensor/tune/tune.h). */
#pragma once

#include "dist/dist.h"
#include "tensor/tune/tune.h"
#include "tensor/graph/captured.h"

TD_BEGIN_C

/* For td_captured_options.peers. A step with NCCL collectives of GPU memory (td_ddp's buckets) is
 * captured if it can be captured on all ranks of the group (NULL: the world). All ranks must call
 * td_captured_run. Steps whose collectives go through CPU memory run eagerly. If a rank dies, the
 * other ranks' td_captured_run or td_captured_next returns TD_E_PEER or TD_E_TIMEOUT. The group
 * owns the result. */
const td_captured_peers *td_group_captured(td_group *group);

/* td_autotune_choose for several ranks: rank 0 chooses algorithms, and all ranks use rank 0's
 * choices, so that all ranks compute equal shapes in the same way. All ranks call td_autotune_agree
 * at the same place, after the first step of the run. Group NULL: the world, or this process alone
 * before td_dist_init. stats may be NULL; it receives rank 0's statistics, and zeros on other
 * ranks.
 */
td_status td_autotune_agree(td_group *group, td_autotune_stats *stats);

TD_END_C
