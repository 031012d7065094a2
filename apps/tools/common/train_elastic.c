/* tdrun --elastic MIN:MAX: processes die and join, and the run goes on in worlds that follow each
 * other. What depends on the world is made by `train_here` in each; the rest is the model's, the
 * optimizer's and r->state's, which a step changes once all ranks have come to its end. */
#include "apps/tools/common/train.h"
#include "dist/elastic/elastic.h"

#include <stdlib.h>

struct train_elastic {
    td_elastic *run;
    td_checkpoint_options state;
    notes notes;      /* of the state */
    train_state kept; /* after the latest step that all ranks have made */
};

td_status train_check_elastic(const train_run *r)
{
    const train_args *a = &r->args;
    const struct {
        bool given;
        const char *what, *why;
    } refused[] = {
        { a->ranks.leaves == 0, "without --leaves",
          "a step would depend on the number of processes: give --leaves N, at least as many as "
          "there are processes" },
        { r->ranks.zero.stage != TD_SHARD_NONE &&
              (a->recipe.ema_decay > 0 || td_math_now().precision == TD_PRECISION_FP16),
          "with --shard, and averages of the weights or fp16",
          "a step that a death undoes would leave them changed: leave one of both out" },
        { a->ranks.mesh != NULL || getenv("TANDEM_MESH") != NULL ||
              a->ranks.slices + a->ranks.micro > 0,
          "with --mesh (or TANDEM_MESH), --slices or --micro",
          "a dead process's stage or slice would be lost: leave it out, or start all again by "
          "tdrun --nproc-per-node N --max-restarts M" },
        { a->device.type != TD_DEVICE_CPU, "on GPUs", "it is for CPUs so far" },
        { a->files.trace != NULL, "with --trace or --report",
          "a process that has died has written no trace: leave it out" },
        { a->files.hash_every > 0, "with --hash-every",
          "each rank writes a file of its own: leave it out" },
        { a->compute.autotune, "with --autotune", "CPUs have nothing to choose: leave it out" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused && ranks_elastic(); i++) {
        TD_CHECK(!refused[i].given, TD_E_ARG, "tdrun --elastic %s: %s", refused[i].what,
                 refused[i].why);
    }
    return TD_OK;
}

/* What a process that is behind will get from this one besides the tensors. */
static void elastic_note(train_run *r)
{
    train_elastic *e = r->ranks.elastic;
    e->notes.count = 0;
    train_note_run(r, &e->notes);
    e->state.metadata_count = e->notes.count;
}

/* In a process that was behind: the state has come from another one. If that dies before the world
 * is made, this one may have to pass the state on. */
static td_status elastic_adopted(const char *path, void *user)
{
    train_run *r = user;
    TD_TRY(train_take_state(r, path));
    r->ranks.elastic->kept = r->state;
    elastic_note(r);
    return TD_OK;
}

/* The optimizer's steps in the checkpoint that the run goes on from. */
static int64_t elastic_steps_before(const train_run *r)
{
    char key[512], text[32] = "0";
    const char *path = r->args.files.resume;
    snprintf(key, sizeof key, "optimizer.%s.step", td_params_get(td_parameters(r->net), 0)->name);
    return path != NULL && td_checkpoint_metadata(path, key, text, sizeof text) == TD_OK
               ? strtoll(text, NULL, 10)
               : 0;
}

static td_status elastic_open(train_run *r)
{
    train_elastic *e = calloc(1, sizeof *e);
    TD_CHECK(e != NULL, TD_E_NOMEM, "no memory for an elastic run");
    r->ranks.elastic = e;
    e->kept = r->state;
    e->state = train_contents(r, "");
    e->state.metadata = e->notes.items;
    bool shards = r->ranks.zero.stage != TD_SHARD_NONE;
    e->run = td_elastic_open(&e->state, .leaves = (int)r->args.ranks.leaves,
                             .strategy = shards ? &r->ranks.zero.strategy : NULL,
                             .step = elastic_steps_before(r), .timeout = r->args.ranks.timeout,
                             .adopted = elastic_adopted, .user = r);
    return e->run != NULL ? TD_OK : TD_E_NETWORK;
}

/* Everything since the latest step is undone, or was done with another world's loader. */
static bool elastic_meet(train_run *r)
{
    train_elastic *e = r->ranks.elastic;
    r->stop = false;
    r->state = e->kept;
    elastic_note(r);
    td_loader_close(r->loader);
    r->loader = NULL;
    return td_elastic_meet(e->run);
}

td_status train_worlds(train_run *r, td_status (*train_here)(train_run *r, bool first))
{
    bool over = false, first = true;
    td_status status = elastic_open(r);
    while (status == TD_OK && !over && elastic_meet(r)) {
        td_elastic *run = r->ranks.elastic->run;
        status = train_here(r, first);
        first = false;
        if (status != TD_OK && td_elastic_failed(run)) {
            status = TD_OK;
        } else if (status == TD_OK && td_elastic_stands(run)) {
            over = td_elastic_finish(run);
        }
    }
    return status != TD_OK || over ? status : train_elastic_close(r);
}

bool train_stands(const train_run *r)
{
    return r->ranks.elastic == NULL || td_elastic_stands(r->ranks.elastic->run);
}

td_status train_commit(train_run *r)
{
    train_elastic *e = r->ranks.elastic;
    if (!td_elastic_commit(e->run)) {
        return TD_E_PEER; /* train_worlds goes on */
    }
    train_optimize(r);
    if (!td_elastic_settle(e->run)) {
        return TD_E_PEER;
    }
    e->kept = r->state;
    return TD_OK;
}

td_status train_elastic_close(train_run *r)
{
    train_elastic *e = r->ranks.elastic;
    td_status status = e != NULL && e->run != NULL ? td_elastic_close(e->run) : TD_OK;
    free(e);
    r->ranks.elastic = NULL;
    return status;
}
