/* Checks that all ranks have the same model. They compare a digest first. If it differs, they
 * exchange descriptions, so that each rank can say what differs. */
#include "dist/ddp/parts.h"

#include "autograd/tape.h"
#include "dist/collectives.h"
#include "dist/group.h"
#include "dist/mesh.h"
#include "nn/internal.h"
#include "tensor/extend.h"
#include "tensor/text.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 400 };

/* The model's description: a line for the options and a line for each tensor. malloc'ed; NULL when
 * memory is short. */
static char *describe_model(const td_module *model, const td_ddp_options *o)
{
    static const char *const shards[] = { "", ", shard optimizer", ", shard gradients",
                                          ", shard parameters" };
    td_state_list list = td_module_state(model);
    char *text = NULL;
    size_t size = 0;
    FILE *out = list.count >= 0 ? open_memstream(&text, &size) : NULL;
    if (out == NULL) {
        td_state_list_free(&list);
        td_fail(TD_E_NOMEM, "no memory to describe a model");
        return NULL;
    }
    fprintf(out, "the options bucket_cap_mb %g, replicas %d%s%s%s%s%s%s%s, hook %s\n",
            o->bucket_cap_mb, o->mesh != NULL ? td_mesh_size(o->mesh, "rep") : 1, shards[o->shard],
            o->wire != NULL ? ", wire bf16" : "", o->gathers ? ", gathers" : "",
            o->offload != NULL ? ", offload" : "",
            o->find_unused_parameters ? ", find_unused_parameters" : "",
            o->static_graph ? ", static_graph" : "",
            o->no_broadcast_buffers ? ", no_broadcast_buffers" : "",
            o->comm_hook != NULL ? o->comm_hook : "none");
    for (int i = 0; i < list.count; i++) {
        const td_tensor *t = list.items[i].tensor;
        fprintf(out, "%s%s '%s' %s%s\n", td_draw_of(t) != NULL ? "(td_defer_init) " : "",
                list.items[i].buffer ? "the buffer"
                : td_is_leaf(t)      ? "the parameter"
                                     : "the frozen parameter",
                list.items[i].name, td_dtype_name(t->dtype), td_describe_shape(td_shape_of(t)));
    }
    td_state_list_free(&list);
    if (fclose(out) != 0) {
        free(text);
        td_fail(TD_E_NOMEM, "no memory to describe a model");
        return NULL;
    }
    return text;
}

/* all_gather over plain memory. */
static td_status gather(td_group *group, void *all, const void *mine, int64_t count, td_dtype dtype)
{
    int64_t size = td_group_size(group);
    td_tensor *out = td_borrow(all, TD_SHAPE(size, count), dtype, TD_CPU);
    td_tensor *in = td_borrow((void *)(uintptr_t)mine, TD_SHAPE(count), dtype, TD_CPU);
    td_status status = out != NULL && in != NULL ? td_all_gather(group, out, in, NULL) : TD_E_NOMEM;
    td_free(out);
    td_free(in);
    return status;
}

/* The first line that differs; "": none. */
static void first_difference(const char *mine, const char *root, char *message)
{
    message[0] = '\0';
    while (*mine != '\0' || *root != '\0') {
        size_t a = strcspn(mine, "\n"), b = strcspn(root, "\n");
        if (a != b || memcmp(mine, root, a) != 0) {
            int cut_a = a < 150 ? (int)a : 150, cut_b = b < 150 ? (int)b : 150;
            snprintf(message, MESSAGE, "%.*s where rank 0 has %.*s", a > 0 ? cut_a : 12,
                     a > 0 ? mine : "nothing more", b > 0 ? cut_b : 12,
                     b > 0 ? root : "nothing more");
            return;
        }
        mine += mine[a] == '\n' ? a + 1 : a;
        root += root[b] == '\n' ? b + 1 : b;
    }
}

/* Exchanges the ranks' findings; all ranks report the first one. */
static td_status report_difference(td_group *group, const char *mine, int64_t root_length)
{
    char *root, *all = calloc((size_t)td_group_size(group), MESSAGE);
    char message[MESSAGE] = "";
    td_status status = td_text_of_root(group, mine, root_length, &root);
    if (status == TD_OK && all == NULL) {
        status = td_fail(TD_E_NOMEM, "no memory to compare models");
        td_group_abort(group, td_last_error());
    }
    if (status == TD_OK) {
        first_difference(mine, root, message);
        status = gather(group, all, message, MESSAGE, TD_U8);
    }
    for (int rank = 0; status == TD_OK && rank < td_group_size(group); rank++) {
        const char *text = all + (size_t)rank * MESSAGE;
        if (*text != '\0') {
            status = td_fail(TD_E_MISMATCH,
                             "td_ddp: the ranks have different models: rank %d has %s; build the "
                             "same model on every rank",
                             rank, text);
        }
    }
    free(root);
    free(all);
    return status;
}

td_status td_ddp_check_same(td_ddp_state *s)
{
    char *text = describe_model(s->model, &s->options);
    int size = td_group_size(s->group);
    int64_t *all = calloc((size_t)size, 2 * sizeof *all);
    if (text == NULL || all == NULL) {
        free(text);
        free(all);
        return td_fail(TD_E_NOMEM, "no memory to compare models");
    }
    int64_t mine[2] = { (int64_t)strlen(text), (int64_t)td_hash_text(TD_HASH_BEGIN, text) };
    td_status status = gather(s->group, all, mine, 2, TD_I64);
    bool same = true;
    for (int rank = 1; rank < size; rank++) {
        same = same && all[2 * rank] == all[0] && all[2 * rank + 1] == all[1];
    }
    if (status == TD_OK && !same) {
        status = report_difference(s->group, text, all[0]);
    }
    free(text);
    free(all);
    return status;
}
