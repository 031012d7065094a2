/* What hangs on DDP: the parts that every td_ddp has, and the codecs by name. */
#include "dist/ddp/extra/parts.h"

#include <string.h>

/* Statistics come first, so that they count what the other parts do. */
td_status td_ddp_open_parts(td_ddp_state *s)
{
    TD_TRY(td_ddp_check_same(s));
    TD_TRY(td_ddp_saving_open(s));
    TD_TRY(td_ddp_stats_open(s));
    return td_ddp_usage_open(s);
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
