/* Choices of algorithms by timing: all ranks take rank 0's. */
#include "dist/comm/group.h"
#include "tensor/tune/store.h"
#include "dist/graph/captured.h"
#include "dist/comm/collectives.h"

#include <stdlib.h>

/* A rank that fails must not let the others wait: rank 0 tells them if it has no choices, and a
 * rank without memory breaks the group. */
td_status td_autotune_agree(td_group *group, td_autotune_stats *stats)
{
    td_autotune_stats ignored, *f = stats != NULL ? stats : &ignored;
    *f = (td_autotune_stats){ 0 };
    if (group == NULL && !td_dist_is_initialized()) {
        return td_autotune_choose(f);
    }
    group = td_group_or_world(group);
    td_status chosen = td_group_rank(group) == 0 ? td_autotune_choose(f) : TD_OK;
    size_t bytes = 0;
    char *text = td_group_rank(group) == 0 && chosen == TD_OK ? td_autotune_text(&bytes) : NULL;
    double length = text != NULL ? (double)bytes : 0;
    td_status status = td_all_reduce_numbers(group, &length, 1);
    if (status == TD_OK && length > 0) {
        char *root;
        status = td_text_of_root(group, text, (int64_t)length, &root);
        if (status == TD_OK && td_group_rank(group) != 0) {
            status = td_autotune_take(root, (size_t)length);
            if (status != TD_OK) {
                td_group_abort(group, td_last_error());
            }
        }
        free(root);
    }
    free(text);
    return chosen != TD_OK ? chosen : status;
}
