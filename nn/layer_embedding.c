/* Embedding: a table of rows, chosen by i64 indices. */
#include "nn/internal.h"

typedef struct embedding_state {
    td_embedding_options options;
    int64_t rows, features;
    td_tensor *weight;
} embedding_state;

static td_tensor *embedding_forward(td_module *self, td_tensor *x, td_site at)
{
    const embedding_state *s = self->state;
    td_embedding_options options = s->options;
    options.index = x;
    options.table = s->weight;
    return td_embedding_at(options, at);
}

static void embedding_describe(const td_module *self, char *text, size_t size)
{
    const embedding_state *s = self->state;
    snprintf(text, size, "%lld, %lld", (long long)s->rows, (long long)s->features);
}

static const td_module_type embedding_type = {
    .name = "Embedding",
    .forward = embedding_forward,
    .describe = embedding_describe,
};

bool td_takes_indices(const td_module *m)
{
    return m->child_count > 0 ? td_takes_indices(m->children[0]) : m->type == &embedding_type;
}

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
    td_module *m = td_module_new(&embedding_type, sizeof(embedding_state));
    if (m == NULL) {
        return NULL;
    }
    embedding_state *s = m->state;
    s->options = (td_embedding_options){ .has_padding = o.has_padding, .padding_idx = padding };
    s->rows = rows;
    s->features = features;
    s->weight = td_module_new_parameter(m, "weight", TD_SHAPE(rows, features), TD_ROW_MAJOR);
    if (s->weight != NULL) {
        td_init_normal_(s->weight, 1.0);
    }
    if (s->weight != NULL && o.has_padding) {
        td_init_zero_row_(s->weight, padding);
    }
    return td_module_finish(m);
}
