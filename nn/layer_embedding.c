/* Embedding: a table of rows, chosen by i64 indices. */
#include "nn/layer.h"

static void embedding_describe(const td_module *self, char *text, size_t size)
{
    const int64_t *shape = ((const td_embedding_options *)self->state)->table->shape;
    snprintf(text, size, "%lld, %lld", (long long)shape[0], (long long)shape[1]);
}

TD_LAYER(embedding, td_embedding_options, index, "Embedding", .describe = embedding_describe,
         .takes_indices = true);

td_module *td_nn_embedding_at(td_nn_embedding_options o, td_site at)
{
    int64_t rows = o.rows, features = o.features;
    int64_t padding = o.padding_idx < 0 ? o.padding_idx + rows : o.padding_idx;
    TD_REQUIRE(rows > 0 && features > 0, at,
               "td_nn_embedding(%lld, %lld): both sizes must be positive", (long long)rows,
               (long long)features);
    TD_REQUIRE(!o.has_padding || (padding >= 0 && padding < rows), at,
               "td_nn_embedding: padding_idx %lld lies outside of the %lld rows",
               (long long)o.padding_idx, (long long)rows);
    td_embedding_options options = { .has_padding = o.has_padding, .padding_idx = padding };
    td_module *m = td_module_new(&embedding_type, sizeof options);
    td_tensor *table = td_module_new_parameter(m, "weight", TD_SHAPE(rows, features), TD_ROW_MAJOR);
    options.table = table;
    if (table != NULL) {
        td_init_normal_(table, 1.0);
    }
    if (table != NULL && o.has_padding) {
        td_init_zero_row_(table, padding);
    }
    return td_module_finish_with(m, &options);
}
