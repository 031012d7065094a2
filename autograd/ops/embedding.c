/* Rows of a table, picked by index. */
#include "autograd/ops/op.h"

static void embedding_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *index = td_saved(node, 0);
    td_grad_slot slot = td_input_grad(node, 0);
    const int64_t *padding = td_params_of(node);
    const td_kernels *kernels = td_kernels_for(dy);
    bool apart = *padding >= 0 && slot.accumulate; /* a row of it must stay as it is */
    td_tensor *grad = apart ? td_step_new_like(slot.grad, td_node_site(node)) : slot.grad;
    kernels->embedding_grad(grad, dy, index, slot.accumulate && !apart);
    if (*padding >= 0) {
        td_tensor row = *grad;
        row.shape[0] = 1;
        row.offset += *padding * grad->stride[0];
        kernels->fill(&row, 0.0);
    }
    if (apart) {
        kernels->axpy(slot.grad, 1.0, grad);
    }
}

static void embedding_check(const td_tensor *index, const td_tensor *table, td_site at)
{
    td_check_tensor(index, "embedding", "index", at);
    TD_REQUIRE(index->dtype == TD_I64 && index->ndim < TD_MAX_DIMS && table->ndim == 2, at,
               "embedding: index %s and table %s: they must be i64 of at most %d dimensions, and "
               "[rows,d]",
               td_describe(index), td_describe(table), TD_MAX_DIMS - 1);
    TD_REQUIRE(td_same_device(td_device_of(index), td_device_of(table)), at,
               "embedding: index %s and table %s are on different devices", td_describe(index),
               td_describe(table));
    td_op_check_index(index, table->shape[0], "embedding", "index", at);
}

td_tensor *td_embedding_at(td_embedding_options options, td_site at)
{
    td_tensor *index = options.index, *table = options.table;
    /* A table of 16 bits that takes no gradient stays as it is: the rows are widened. */
    td_rule rule = td_needs_grad(table) ? TD_RULE_OF(embedding) : TD_RULE_IS_ANY;
    table = td_op_input(table, "embedding", "the table", rule, at);
    embedding_check(index, table, at);
    int64_t rows = table->shape[0], padding = options.has_padding ? options.padding_idx : -1;
    if (options.has_padding) {
        padding += padding < 0 ? rows : 0;
        TD_REQUIRE(padding >= 0 && padding < rows, at,
                   "embedding: padding_idx %lld lies outside of the table's %lld rows",
                   (long long)options.padding_idx, (long long)rows);
    }
    td_shape shape = td_shape_of(index);
    shape.dim[shape.ndim++] = table->shape[1];
    td_tensor *y = td_op_new(shape, table->dtype, table, at);
    td_kernels_for(table)->embedding(y, table, index);
    y = TD_RECORD(at, .op = "embedding", .backward = embedding_backward, .out = y,
                  .inputs = { table }, .saved = { index }, TD_PARAMS(&padding));
    return td_op_input(y, "embedding", "the rows", TD_RULE_OF(embedding), at);
}
