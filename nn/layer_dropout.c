/* Dropout. Each layer draws from a Philox stream of its own: the key is the run's seed and a hash
 * of the layer's path, the counter the number of its forwards so far. So the masks do not depend on
 * what else is drawn, and a resumed run, which gets seed and count from the checkpoint, goes on
 * with the masks that the uninterrupted one would have had. */
#include "nn/module.h"

typedef struct dropout_state {
    double p;
    td_dropout_place place;
    uint64_t replica;
} dropout_state;

/* FNV-1a (Fowler, Noll, Vo), 64 bits. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return hash;
}

static td_tensor *dropout_forward(td_module *self, td_tensor *x, td_site at)
{
    dropout_state *s = self->state;
    if (!self->training || s->p == 0.0) {
        return x;
    }
    /* An odd factor: no two replicas get the same seed. */
    uint64_t seed = s->place.seed + s->replica * UINT64_C(0x9e3779b97f4a7c15);
    td_philox_key key = { seed, hash_text(td_node_of(self)->path) };
    return (td_dropout)(x, s->p, key, s->place.calls++, at);
}

static void dropout_describe(const td_module *self, char *text, size_t size)
{
    const dropout_state *s = self->state;
    snprintf(text, size, "p %g", s->p);
}

static const td_module_type dropout_type = {
    .name = "Dropout",
    .forward = dropout_forward,
    .describe = dropout_describe,
};

td_dropout_place *td_dropout_place_of(td_module *m)
{
    return m->type == &dropout_type ? &((dropout_state *)m->state)->place : NULL;
}

void td_dropout_set_replica(td_module *m, uint64_t replica)
{
    if (m->type == &dropout_type) {
        ((dropout_state *)m->state)->replica = replica;
    }
}

td_module *td_nn_dropout(double p)
{
    TD_REQUIRE(p >= 0.0 && p < 1.0, TD_HERE, "td_nn_dropout(%g): p must be in [0, 1)", p);
    td_module *m = td_module_new(&dropout_type, sizeof(dropout_state));
    if (m == NULL) {
        return NULL;
    }
    dropout_state *s = m->state;
    s->p = p;
    s->place.seed = td_default_generator()->seed;
    return td_module_finish(m);
}
