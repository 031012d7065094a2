/* What hangs on DDP. */
#pragma once

#include "dist/ddp/ddp.h"

extern const td_bucket_codec td_codec_bf16, td_codec_fp16;

/* On every rank TD_E_MISMATCH with the first difference, or TD_E_NOMEM if one rank had no memory
 * for this or for td_parameters (s->params is NULL). Adds no part. */
td_status td_ddp_check_same(td_ddp_state *s);

td_status td_ddp_stats_open(td_ddp_state *s);
td_status td_ddp_usage_open(td_ddp_state *s);
td_status td_ddp_saving_open(td_ddp_state *s);
