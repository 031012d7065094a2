/* Pipelines: making a model a pipeline, and its forward. */
#include "dist/pipeline/stages.h"

#include "autograd/tape.h"
#include "dist/comm/mesh.h"
#include "nn/around.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static void pipeline_free(void *user)
{
    td_pipe *p = user;
    for (int c = 0; p->chunks != NULL && c < p->plan.chunks; c++) {
        td_pipe_chunk *chunk = &p->chunks[c];
        for (int k = 0; k < chunk->count; k++) {
            td_free(chunk->slots[k].in);
            td_free(chunk->slots[k].out);
            td_free(chunk->slots[k].gradient);
        }
        td_free(chunk->shape_in);
        td_free(chunk->shape_out);
    }
    for (int k = 0; k < p->ties.count * p->plan.ranks; k++) {
        td_free(p->ties.list[k / p->plan.ranks].parts[k % p->plan.ranks]);
    }
    td_module_set_staging(p->model, NULL);
    for (td_pipe_room *room = p->rooms, *next; room != NULL; room = next) {
        next = room->next;
        free(room);
    }
    free(p);
}

static bool pipe_make_chunk(td_pipe *p, int chunk)
{
    td_pipe_chunk *c = &p->chunks[chunk];
    int held = td_plan_held(&p->plan, p->rank, chunk) + TD_PIPE_AHEAD;
    int count = p->plan.chunks > 1 || held > p->plan.micro ? p->plan.micro : held;
    c->slots = td_pipe_new(p, count, sizeof *c->slots);
    c->count = c->slots != NULL ? count : 0;
    c->shape_in = td_zeros(TD_SHAPE(TD_PIPE_SHAPE), TD_I64, TD_CPU);
    c->shape_out = td_zeros(TD_SHAPE(TD_PIPE_SHAPE), TD_I64, TD_CPU);
    return c->slots != NULL && c->shape_in != NULL && c->shape_out != NULL;
}

td_status td_pipe_make_lists(td_pipe *p)
{
    int count = td_plan_count(&p->plan), ranks = p->plan.ranks;
    int most = count + p->plan.micro * p->ties.count; /* messages */
    td_action *actions = td_pipe_new(p, count, sizeof *actions);
    p->chunks = td_pipe_new(p, p->plan.chunks, sizeof *p->chunks);
    p->streams = td_pipe_new(p, ranks, sizeof *p->streams);
    bool room = actions != NULL && p->chunks != NULL && p->streams != NULL;
    for (int c = 0; room && c < p->plan.chunks; c++) {
        room = pipe_make_chunk(p, c);
    }
    for (int r = 0; room && r < ranks; r++) {
        p->streams[r].items = td_pipe_new(p, most, sizeof(td_action));
        p->streams[r].works = td_pipe_new(p, most, sizeof(td_work *));
        room = p->streams[r].items != NULL && p->streams[r].works != NULL;
    }
    TD_TRY(room ? TD_OK : TD_E_NOMEM);
    td_plan_actions(&p->plan, p->rank, actions);
    p->actions = actions;
    return TD_OK;
}

/* ---- forward ---- */

static td_tensor *pipeline_around(const td_around_rest *rest, td_tensor *x, void *user)
{
    td_pipe *p = user;
    if (p->stepping) {
        return td_pipe_run(p, p->now, x, rest->second, rest->at);
    }
    TD_REQUIRE(!td_grad_enabled(), rest->at,
               "td_forward: a pipeline trains by td_pipeline_step; without gradients "
               "(td_no_grad_begin) td_forward runs all stages");
    td_tensor *y;
    if (td_pipe_evaluate(p, x, rest->second, rest->at, &y) != TD_OK) {
        td_fatal(rest->at, "td_forward of a pipeline: %s", td_last_error());
    }
    return y;
}

td_pipe *td_pipe_of(const td_module *net, const char *function, td_site at)
{
    td_pipe *p = net != NULL ? td_surrounded_by(net, pipeline_around) : NULL;
    TD_REQUIRE(p != NULL, at, "%s: %s is no pipeline: td_pipeline comes first", function,
               net == NULL ? "NULL" : net->type->name);
    return p;
}

/* ---- beginning and end ---- */

static td_status stages_sum(double *numbers, int count, void *user)
{
    return td_all_reduce_numbers(user, numbers, count);
}

static td_status stages_broadcast(td_tensor *t, int from, void *user)
{
    return td_broadcast(user, t, from, NULL);
}

static td_status stages_agree(td_status mine, void *user)
{
    return td_group_agree(user, mine);
}

static td_status pipe_make(td_pipe *p, const td_pipeline_options *o)
{
    int ranks = td_group_size(p->group);
    p->rank = td_group_rank(p->group);
    TD_TRY(td_plan_read(o->schedule, ranks, o->micro != 0 ? o->micro : 2 * ranks, &p->plan));
    p->plan.chunks = ranks > 1 ? p->plan.chunks : 1; /* a rank sends itself nothing */
    p->staging = (td_staging){ .rank = p->rank,
                               .ranks = ranks,
                               .sum = stages_sum,
                               .broadcast = stages_broadcast,
                               .agree = stages_agree,
                               .user = p->group };
    TD_TRY(td_pipe_cut(p, o->cut));
    td_module_set_staging(p->model, &p->staging);
    return TD_OK;
}

/* Ranks with other options would wait for messages that nothing sends. */
static td_status pipe_compare(const td_pipe *p)
{
    enum { NUMBERS = 6 };
    double mine[NUMBERS] = { p->plan.kind, p->plan.chunks, p->plan.micro, p->link_count,
                             (double)td_parameter_count(p->model) };
    double all[NUMBERS];
    for (int s = 1; s < td_pipe_stages(p); s++) {
        mine[5] += (double)p->cuts[s] * s;
    }
    memcpy(all, mine, sizeof all);
    TD_TRY(td_all_reduce_numbers(p->group, all, NUMBERS));
    for (int i = 0; i < NUMBERS; i++) {
        TD_CHECK(all[i] == mine[i] * p->plan.ranks, TD_E_MISMATCH,
                 "td_pipeline: the ranks differ in schedule, .micro, .cut or model; this "
                 "one has %d micro-batches, %d stages a rank and %d links",
                 p->plan.micro, p->plan.chunks, p->link_count);
    }
    return TD_OK;
}

static td_status pipe_surround(td_module *model, td_group *group, const td_pipeline_options *o)
{
    td_pipe *p = calloc(1, sizeof *p);
    td_status status = TD_E_NOMEM;
    if (p != NULL) {
        p->model = model;
        p->group = group;
        status = pipe_make(p, o);
    }
    status = td_group_agree(group, status); /* all ranks, or none */
    status = status == TD_OK ? td_group_agree(group, pipe_compare(p)) : status;
    if (status == TD_OK) {
        td_around around = { .run = pipeline_around,
                             .free = pipeline_free,
                             .user = p,
                             .wrapper = "td_pipeline",
                             .inside = true };
        status = td_module_surround(model, &around);
    }
    if (status != TD_OK && p != NULL) {
        pipeline_free(p);
    }
    return status;
}

td_module *td_pipeline_at(td_pipeline_options o, td_site at)
{
    td_module *model = o.model;
    TD_REQUIRE(o.group == NULL || o.mesh == NULL, at,
               "td_pipeline: .group and .mesh: give one of them");
    TD_REQUIRE(td_dist_is_initialized(), at,
               "td_pipeline: there is no process group: td_dist_init comes first");
    TD_REQUIRE(model == NULL || model->name[0] == '\0', at,
               "td_pipeline: '%s' is a part of a larger model; td_pipeline takes the whole model",
               model->name);
    const char *wrapper = model != NULL ? td_module_wrapper(model) : NULL;
    bool again = model != NULL && td_surrounded_by(model, pipeline_around) != NULL;
    TD_REQUIRE(wrapper == NULL || (strcmp(wrapper, "td_tensor_parallel") == 0 && !again), at,
               "td_pipeline: the model went through %s already", again ? "it" : wrapper);
    TD_REQUIRE(model == NULL || td_params_laid_out(model) == NULL, at,
               "td_pipeline: the parameters are laid out already: td_pipeline comes before "
               "td_parameters");
    td_group *group = o.group != NULL  ? o.group
                      : o.mesh != NULL ? td_mesh_group(o.mesh, "pp")
                                       : td_dist_world();
    if (model != NULL && (group == NULL || pipe_surround(model, group, &o) != TD_OK)) {
        td_module_free(model);
        return NULL;
    }
    return model;
}
