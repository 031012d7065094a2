/* Which engines and codecs there are, and which parts every DDP has. */
#include "dist/backend.h"

#include "dist/ddp/parts.h"
#include "dist/engines/p2p/links.h"

#include <string.h>

const td_comm_backend *td_comm_backend_find(const char *name)
{
    if (strcmp(name, "shm") == 0) {
        return &td_shm_backend;
    }
    if (strcmp(name, "gloo") == 0 || strcmp(name, "mpi") == 0) {
        return td_links_backend_find(name);
    }
    if (strcmp(name, "nccl") == 0) {
        td_fail(TD_E_UNSUPPORTED,
                "nccl moves GPUs' memory, beside one of shm (one host), gloo or mpi (several) for "
                "the CPUs'; td_dist_init takes both together");
    } else {
        td_fail(TD_E_ARG, "there is no backend '%s'; there are shm, gloo, mpi and nccl", name);
    }
    return NULL;
}

const td_bucket_codec *td_codec_find(const char *name)
{
    static const td_bucket_codec *const codecs[] = { &td_codec_bf16, &td_codec_fp16,
                                                     &td_codec_powersgd };
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        if (strcmp(name, codecs[i]->name) == 0) {
            return codecs[i];
        }
    }
    td_fail(TD_E_ARG,
            "td_ddp: there is no communication hook '%s'; there are bf16, fp16 and powersgd", name);
    return NULL;
}

/* Statistics come first, so that they count what the other parts do. */
td_status td_ddp_open_parts(td_ddp_state *s)
{
    TD_TRY(td_ddp_check_same(s));
    TD_TRY(td_ddp_stats_open(s));
    return td_ddp_usage_open(s);
}
