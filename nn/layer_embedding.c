/* Embedding: a table of rows, chosen by i64 indices. */
#include "nn/internal.h"

typedef struct embedding_state {
    int64_t rows, features;
    td_tensor *weight;
} embedding_state;

static td_tensor *embedding_forward(td_module *self, td_tensor *x, td_site at)
{
    const embedding_state *s = self->state;
    return td_embedding_at(x, s->weight, at);
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

bool td_is_embedding(const td_module *m)
{
    return m->type == &embedding_type;
}

td_module *td_nn_embedding_at(int64_t rows, int64_t features, td_site at)
{
    TD_REQUIRE(rows > 0 && features > 0, at,
               "td_nn_embedding(%lld, %lld): both sizes must be positive", (long long)rows,
               (long long)features);
    td_module *m = td_module_new(&embedding_type, sizeof(embedding_state));
    if (m == NULL) {
        return NULL;
    }
    embedding_state *s = m->state;
    s->rows = rows;
    s->features = features;
    s->weight = td_module_new_parameter(m, "weight", TD_SHAPE(rows, features), TD_ROW_MAJOR);
    if (s->weight != NULL) {
        td_normal_(s->weight, 0.0, 1.0, td_default_generator());
    }
    return td_module_finish(m);
}
