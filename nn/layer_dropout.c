/* Dropout and StochasticDepth. Each layer draws from a Philox stream of its own: the key is the
 * run's seed and a hash of the layer's path, the counter the number of its forwards so far. So the
 * masks do not depend on what else is drawn, and a resumed run, which gets seed and count from the
 * checkpoint, goes on with the masks that the uninterrupted one would have had. */
#include "autograd/tape.h"
#include "nn/layer.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"
#include "tensor/hooks.h"

typedef struct dropout_state {
    double p;
    td_dropout_place place;
    uint64_t replica;
    int part, parts; /* td_dropout_set_part; parts 0: x is whole */
    bool columns;
} dropout_state;

static td_philox_key key_of(const td_module *self)
{
    const dropout_state *s = self->state;
    /* An odd factor: no two replicas get the same seed. */
    uint64_t seed = s->place.seed + s->replica * UINT64_C(0x9e3779b97f4a7c15);
    return (td_philox_key){ seed, td_hash_text(TD_HASH_BEGIN, td_node_of(self)->path) };
}

/* For a captured step, now and before each replay. */
static void take_call(void *user, void *number)
{
    td_dropout_place *place = user;
    *(uint64_t *)number = place->calls++;
}

/* The number of this call: by reference, since replays of a captured step count on. */
static const uint64_t *call_of(dropout_state *s)
{
    uint64_t *call = td_step_bytes(sizeof *call);
    if (td_recomputing()) {
        td_not_recordable("dropout draws again what it has drawn (--recompute)");
        take_call(&s->place, call);
        return call;
    }
    return td_step_numbers(call, sizeof *call, take_call, &s->place);
}

/* The numbers of x's elements in the whole tensor. */
static td_numbering numbers_of(const td_module *self, const td_tensor *x, td_site at)
{
    const dropout_state *s = self->state;
    int64_t n = s->columns ? x->shape[x->ndim - 1] : td_numel(x);
    TD_REQUIRE(s->parts == 0 || n % 4 == 0, at,
               "'%s' draws one of %d parts: %lld elements of x%s; they must be a multiple of 4",
               td_node_of(self)->label, s->parts, (long long)n, td_describe_shape(td_shape_of(x)));
    return s->parts == 0 ? (td_numbering){ 0 } : (td_numbering){ s->part * n, n, s->parts * n };
}

static void dropout_describe(const td_module *self, char *text, size_t size)
{
    const dropout_state *s = self->state;
    td_snprintf(text, size, "p %g", s->p);
}

/* The layer td_nn_NAME, which is td_NAME_by while it trains. */
#define LAYER(name, type_name, ...)                                                                \
    TD_LAYER_BY(name, dropout_state, type_name,                                                    \
                self->training && s->p != 0.0                                                      \
                    ? td_##name##_by(x, s->p, key_of(self), call_of(self->state), __VA_ARGS__)     \
                    : x,                                                                           \
                .describe = dropout_describe);                                                     \
    td_module *td_nn_##name##_at(double p, td_site at)                                             \
    {                                                                                              \
        return make(&name##_type, p, at);                                                          \
    }

static td_module *make(const td_module_type *type, double p, td_site at)
{
    TD_REQUIRE(p >= 0.0 && p < 1.0, at, "%s(%g): p must be in [0, 1)", type->name, p);
    dropout_state s = { .p = p, .place.seed = td_default_generator()->seed };
    return td_module_finish_with(td_module_new(type, sizeof s), &s);
}

LAYER(dropout, "Dropout", numbers_of(self, x, at), at)
LAYER(dropout2d, "Dropout2d", at)
LAYER(stochastic_depth, "StochasticDepth", at)

static bool draws(const td_module *m)
{
    return m->type == &dropout_type || m->type == &dropout2d_type ||
           m->type == &stochastic_depth_type;
}

td_dropout_place *td_dropout_place_of(td_module *m)
{
    return draws(m) ? &((dropout_state *)m->state)->place : NULL;
}

void td_dropout_set_replica(td_module *m, uint64_t replica)
{
    if (draws(m)) {
        ((dropout_state *)m->state)->replica = replica;
    }
}

bool td_dropout_set_part(td_module *m, int part, int parts, bool columns)
{
    dropout_state *s = m->state;
    if (m->type == &dropout_type) {
        s->part = part;
        s->parts = parts;
        s->columns = columns;
    }
    return m->type == &dropout_type;
}
