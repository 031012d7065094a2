#include "apps/common/weights.h"

static td_status load_averages(td_module *net, const char *path)
{
    td_ema *ema = td_ema_new(net, .decay = 0);
    if (ema == NULL) {
        return TD_E_NOMEM;
    }
    td_status status = td_checkpoint_load(path, &(td_checkpoint){ .model = net, .ema = ema });
    if (status == TD_OK) {
        td_ema_swap(ema);
    }
    td_ema_free(ema);
    return status;
}

td_status weights_load(td_module *net, const char *path, bool *averages)
{
    char text[64];
    bool has = td_checkpoint_metadata(path, "ema.updates", text, sizeof text) == TD_OK;
    if (averages != NULL) {
        *averages = has;
    }
    return has ? load_averages(net, path)
               : td_checkpoint_load(path, &(td_checkpoint){ .model = net });
}
