/* How a program that trains begins and ends. */
#include "apps/tools/common/signals.h"
#include "apps/tools/common/train.h"
#include "apps/tools/report/live.h"
#include "dist/ddp/codec.h"
#include "dist/trace.h"

#include <stdlib.h>
#include <string.h>

td_status train_begin(train_run *r)
{
    if (td_dist_is_initialized() || ranks_elastic()) {
        ranks_begin(&r->args);
    }
    TD_TRY(train_find_latest(r));
    TD_TRY(train_args_apply(&r->args, r->task->name));
    TD_REQUIRE(r->args.ranks.comm_hook == NULL ||
                   train_hook_read(r->args.ranks.comm_hook, &r->ranks.hook),
               TD_HERE, "--comm-hook %s is none of its forms", r->args.ranks.comm_hook);
    TD_TRY(train_set_shard(r));
    TD_TRY(train_report_begin(r));
    TD_TRY(train_check_elastic(r));
    TD_TRY(train_check_leaves(r));
    TD_TRY(train_check_cut(r));
    if (r->args.files.trace != NULL) {
        TD_TRY(td_trace_open(r->args.files.trace));
    }
    TD_TRY(check_can_save(r->args.files.save));
    TD_TRY(check_can_save(r->args.files.save_model));
    TD_TRY(r->task->open(r));
    TD_TRY(ranks_agree("training data", r->data_name));
    return ranks_agree("classes", r->notes.classes != NULL ? r->notes.classes : "none");
}

td_module *train_ddp(const train_run *r, td_module *model)
{
    const train_hook *h = &r->ranks.hook;
    const td_strategy *zero = &r->ranks.zero.strategy;
    int leaves = (int)r->args.ranks.leaves;
    bool alone = train_is_cut(r) && train_world(r) == 1 && leaves == 0; /* no exchange along dp */
    return model == NULL || alone
               ? model
               : td_ddp(model, .mesh = r->ranks.mesh,
                        .strategy = leaves > 0 ? td_leaves(leaves, .strategy = zero) : zero,
                        .comm_hook = h->rank > 0 ? NULL : h->name,
                        .codec =
                            h->rank > 0 ? td_powersgd(.rank = h->rank, .start = h->start) : NULL);
}

td_sampler *train_sampler(const train_run *r)
{
    return td_distributed_sampler(.deal = train_deal(r), .shuffle = true,
                                  .seed = (uint64_t)r->args.seed);
}

td_loader *train_loader(train_run *r, td_sampler *sampler)
{
    int64_t parts = td_leaf_count(r->net) > 0 ? train_deal(r).parts : 1;
    return td_loader_open(r->train, .batch_size = r->args.batch_size * parts, .shuffle = true,
                          .sampler = sampler, .drop_last = r->args.recipe.drop_last,
                          .workers = (int)r->args.workers, .streamed = r->args.compute.streamed,
                          .device = r->args.device);
}

static void end(train_run *r)
{
    (void)train_elastic_close(r);
    report_live_close(&r->args.files.live);
    metrics_close(r->log.rows);
    hashes_close(r->log.hashes);
    td_loader_close(r->loader);
    td_loader_close(r->tests.loader);
    td_ema_free(r->made.ema);
    td_scaler_free(r->made.scaler);
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_mesh_free(r->ranks.mesh);
    notes_free(&r->notes);
    free(r->ranks.leaves.loss);
    r->task->close(r);
}

int train_main(train_run *r, train_program program)
{
    bool several = td_dist_is_launched() && !ranks_elastic(); /* train_worlds joins others */
    td_status status =
        several ? td_dist_init(.timeout = r->args.ranks.timeout) : TD_OK; /* all wait */
    status = status == TD_OK ? program(r) : status;
    int code = status != TD_OK ? app_failed(r->app) : r->stop ? stop_exit_code() : 0;
    if (reports_end(&r->args.reports, r->net, r->optim) != TD_OK) {
        int failed = app_failed(r->app);
        code = code != 0 ? code : failed;
    }
    end(r);
    if (several) {
        td_dist_destroy();
    }
    return code;
}

/* What a started rank runs. */
typedef struct started {
    train_run *run; /* the program's job begins with it */
    size_t size;    /* of the job */
    train_program program;
} started;

/* A rank changes its job. A process has a copy of it; a thread (tdrun --sim) needs one, too, whose
 * options are the copy's. */
static int started_main(int local_rank, void *job)
{
    (void)local_rank;
    const started *s = job;
    char *own = malloc(s->size), *given = (char *)s->run;
    if (own == NULL) {
        return EXIT_FAILURE;
    }
    memcpy(own, given, s->size);
    train_run *r = (train_run *)(void *)own;
    for (int i = 0; i < r->args.option_count; i++) {
        char *value = r->args.options[i].value;
        if (value >= given && value < given + s->size) {
            r->args.options[i].value = own + (value - given);
        }
    }
    int code = train_main(r, s->program);
    free(own);
    return code;
}

bool train_simulates(void)
{
    return getenv("TANDEM_SIM") != NULL;
}

int train_start(train_run *r, train_program program, size_t size, int64_t ranks)
{
    const train_args *a = &r->args;
    const train_ranks *how = &a->ranks;
    bool together = how->leaves + how->slices + how->micro > 0 && !td_dist_is_launched();
    int signal, count = (int)(ranks == 0 ? together || train_simulates() : ranks);
    if (count == 0) {
        return train_main(r, program);
    }
    if (train_simulates() &&
        (a->reports.profile || a->reports.kernels != NULL || a->reports.memory || a->compute.pin ||
         a->compute.threads > 0 || a->files.trace != NULL || a->files.report != NULL)) {
        td_fail(TD_E_ARG,
                "a simulated run has no --profile, --memory, --trace, --report, --threads or "
                "--pin: they are for a process, and its ranks are threads of one");
        return app_failed(r->app);
    }
    started job = { r, size, program };
    td_status status = td_spawn(started_main, &job, count, .stopped_by = &signal);
    return signal != 0 ? 128 + signal : status != TD_OK ? app_failed(r->app) : 0;
}
