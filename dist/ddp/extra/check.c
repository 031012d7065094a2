/* Checks that all ranks have the same model: each compares its description with rank 0's. */
#include "dist/ddp/extra/parts.h"

#include "autograd/tape.h"
#include "dist/comm/collectives.h"
#include "dist/comm/group.h"
#include "dist/comm/mesh.h"
#include "nn/internal.h"
#include "nn/shared/slices.h"
#include "tensor/extend.h"
#include "tensor/system/number.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 400 };

/* A line for the options and a line for each tensor. */
static void write_model(const td_module *model, const td_ddp_options *o, const td_state_list *list,
                        FILE *out)
{
    td_fprintf(out, "the options bucket_cap_mb %g, replicas %d%s%s%s, hook %s", o->bucket_cap_mb,
               o->mesh != NULL ? td_mesh_size(o->mesh, "rep") : 1,
               o->find_unused_parameters ? ", find_unused_parameters" : "",
               o->static_graph ? ", static_graph" : "",
               o->no_broadcast_buffers ? ", no_broadcast_buffers" : "",
               o->comm_hook != NULL ? o->comm_hook : "none");
    if (o->strategy != NULL) {
        o->strategy->type->describe(o->strategy, out);
    }
    const td_slicing *slicing = td_node_of(model)->slicing;
    if (slicing != NULL) {
        fprintf(out,
                "\nslice %d of %d of the weights (td_ddp takes ranks with equal slices: .mesh)",
                slicing->rank, slicing->ranks);
    }
    fputc('\n', out);
    for (int i = 0; i < list->count; i++) {
        const td_tensor *t = list->items[i].tensor;
        fprintf(out, "%s%s '%s' %s%s\n", td_draw_of(t) != NULL ? "(td_defer_init) " : "",
                list->items[i].buffer ? "the buffer"
                : td_is_leaf(t)       ? "the parameter"
                                      : "the frozen parameter",
                list->items[i].name, td_dtype_name(t->dtype), td_describe_shape(td_shape_of(t)));
    }
}

/* The model's description, malloc'ed; NULL when memory is short. */
static char *describe_model(const td_module *model, const td_ddp_options *o)
{
    td_state_list list = td_module_state(model);
    char *text = NULL;
    size_t size = 0;
    FILE *out = list.count >= 0 ? open_memstream(&text, &size) : NULL;
    if (out != NULL) {
        write_model(model, o, &list, out);
    }
    td_state_list_free(&list);
    if (out == NULL || fclose(out) != 0) {
        free(text);
        td_fail(TD_E_NOMEM, "no memory to describe a model");
        return NULL;
    }
    return text;
}

/* The first line that differs; "": none. */
static void first_difference(const char *mine, const char *root, char *message)
{
    message[0] = '\0';
    while (*mine != '\0' || *root != '\0') {
        size_t a = strcspn(mine, "\n"), b = strcspn(root, "\n");
        if (a != b || memcmp(mine, root, a) != 0) {
            int cut_a = a < 150 ? (int)a : 150, cut_b = b < 150 ? (int)b : 150;
            snprintf(message, MESSAGE,
                     "%.*s where rank 0 has %.*s; build the same model on every rank",
                     a > 0 ? cut_a : 12, a > 0 ? mine : "nothing more", b > 0 ? cut_b : 12,
                     b > 0 ? root : "nothing more");
            return;
        }
        mine += mine[a] == '\n' ? a + 1 : a;
        root += root[b] == '\n' ? b + 1 : b;
    }
}

td_status td_ddp_check_same(td_ddp_state *s)
{
    char message[MESSAGE], *root = NULL;
    char *text = s->params != NULL ? describe_model(s->model, &s->options) : NULL;
    td_status status = td_group_agree(s->group, text != NULL ? TD_OK : TD_E_NOMEM);
    if (text == NULL || status != TD_OK) {
        free(text);
        return status;
    }
    double length = td_group_rank(s->group) == 0 ? (double)strlen(text) : 0.0;
    status = td_all_reduce_numbers(s->group, &length, 1);
    status = status == TD_OK ? td_text_of_root(s->group, text, (int64_t)length, &root) : status;
    if (status == TD_OK) {
        first_difference(text, root, message);
        status = td_group_agree(s->group,
                                message[0] == '\0' ? TD_OK : td_fail(TD_E_MISMATCH, "%s", message));
        status = status == TD_E_MISMATCH
                     ? td_fail_context(status, "td_ddp: the ranks have different models")
                     : status;
    }
    free(root);
    free(text);
    return status;
}
