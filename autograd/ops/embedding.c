/* Rows of a table, picked by index. */
#include "autograd/ops/op.h"
#include "tensor/extend.h"

static void embedding_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *index = td_saved(node, 0);
    td_grad_slot slot = td_input_grad(node, 0);
    if (slot.grad != NULL) {
        td_kernels_of(td_device_of(dy))->embedding_grad(slot.grad, dy, index, slot.accumulate);
    }
}

static void check(const td_tensor *index, const td_tensor *table, td_site at)
{
    td_check_tensor(index, "embedding", "index", at);
    TD_REQUIRE(index->dtype == TD_I64 && index->ndim < TD_MAX_DIMS && table->ndim == 2, at,
               "embedding: index %s and table %s: they must be i64 of at most %d dimensions, and "
               "[rows,d]",
               td_describe(index), td_describe(table), TD_MAX_DIMS - 1);
    TD_REQUIRE(td_same_device(td_device_of(index), td_device_of(table)), at,
               "embedding: index %s and table %s lie on different devices", td_describe(index),
               td_describe(table));
    int64_t bad;
    TD_REQUIRE(td_kernels_of(td_device_of(table))->indices_in_range(index, table->shape[0], &bad),
               at, "embedding: index %lld with table%s: indices must be 0 to %lld", (long long)bad,
               TD_SHAPE_TEXT(table), (long long)table->shape[0] - 1);
}

td_tensor *td_embedding_at(td_tensor *index, td_tensor *table, td_site at)
{
    table = td_op_input(table, "embedding", "the table", TD_RULE_OF(embedding), at);
    check(index, table, at);
    td_shape shape = td_shape_of(index);
    shape.dim[shape.ndim++] = table->shape[1];
    td_tensor *y = td_step_new(shape, table->dtype, TD_ROW_MAJOR, td_device_of(table), at);
    td_kernels_of(td_device_of(table))->embedding(y, table, index);
    return TD_RECORD(at, .op = "embedding", .backward = embedding_backward, .out = y,
                     .inputs = { table }, .saved = { index });
}
