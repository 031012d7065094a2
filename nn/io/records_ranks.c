/* What is saved or loaded together, by which ranks. */
#include "nn/io/records.h"
#include "nn/optim/optim_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each of these structs begins with its part, which is all that is known of them here. */
td_checkpoint_part *td_records_part(const td_checkpoint_options *c, int i)
{
    void *of_training = c->optim != NULL ? td_params_training_of(c->optim->params)->part : NULL;
    void *parts[TD_CHECKPOINT_PARTS] = { c->ema, c->scaler, c->loader, of_training };
    return parts[i];
}

void td_records_require(const td_checkpoint_options *c, const char *function, td_site at)
{
    TD_REQUIRE(c->path != NULL && c->model != NULL, at, "%s: there is no path or no model",
               function);
    for (int i = 0; i < TD_CHECKPOINT_PARTS; i++) {
        const td_checkpoint_part *part = td_records_part(c, i);
        const char *why = part != NULL && part->unready != NULL ? part->unready(part) : NULL;
        TD_REQUIRE(why == NULL, at, "%s: %s", function, why);
    }
    for (int i = 0; i < c->extra_count; i++) {
        const char *name = c->extra[i].name != NULL ? c->extra[i].name : "NULL";
        TD_REQUIRE(strncmp(name, TD_KEY_EXTRA, strlen(TD_KEY_EXTRA)) == 0 &&
                       c->extra[i].tensor != NULL,
                   at, "%s: extra[%d] is '%s': it needs a tensor and a name that begins with '%s'",
                   function, i, name, TD_KEY_EXTRA);
    }
}

const td_params *td_records_shared(const td_checkpoint_options *c)
{
    const td_params *params = td_params_laid_out(c->model);
    const td_params_peers *peers = params != NULL ? td_params_peers_of(params) : NULL;
    return peers != NULL && (c->optim != NULL || peers->own_values) ? params : NULL;
}

const td_params_peers *td_records_ranks(const td_checkpoint_options *c)
{
    const td_params *params = td_params_laid_out(c->model);
    return params != NULL ? td_params_ranks_of(params) : NULL;
}

td_status td_records_agree(const td_params_peers *peers, const td_slicing *slicing,
                           td_status status)
{
    status = peers != NULL ? peers->agree(status, peers->user) : status;
    return slicing != NULL ? slicing->agree(status, slicing->user) : status;
}

td_status td_records_agree_all(const td_module *model, const td_params_peers *peers,
                               td_status status)
{
    const td_staging *stages = td_node_of(model)->staging;
    status = td_records_agree(peers, td_node_of(model)->slicing, status);
    return stages != NULL ? stages->agree(status, stages->user) : status;
}

td_shape td_records_shape(const td_records *l, const td_tensor_record *r)
{
    return r->cut != NULL ? l->slicing->type->whole(l->slicing, r->cut) : td_shape_of(r->tensor);
}

int td_records_in_file(const td_safetensors *file, const char *prefix)
{
    int most = 0, rank, count;
    for (int i = 0; i < td_safetensors_count(file); i++) {
        const char *name = td_safetensors_get(file, i)->name;
        if (strncmp(name, prefix, strlen(prefix)) == 0) {
            int read = sscanf(name + strlen(prefix), "%6d/%6d.", &rank, &count);
            most = read == 2 ? count : read == 1 && rank >= most ? rank + 1 : most;
        }
    }
    return most;
}

char *td_records_own_name(const td_records *l, const char *prefix, int rank, int ranks,
                          const char *name)
{
    char *own = td_format("%s%d/%d.%s", prefix, rank, ranks, name);
    if (l->file != NULL && own != NULL && td_safetensors_find(l->file, own) == NULL) {
        free(own);
        own = td_format("%s%d.%s", prefix, rank, name);
    }
    return own;
}
