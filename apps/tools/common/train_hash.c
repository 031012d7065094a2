/* --hash-every, and the fingerprint that a run ends with. */
#include "apps/tools/common/train.h"
#include "nn/io/fingerprint.h"

/* Steps of the optimizer in the whole run before that of a batch of this epoch. */
static int64_t steps_before(const train_run *r, int64_t batch)
{
    int64_t size = train_group_size(r), each = (td_loader_batches(r->loader) + size - 1) / size;
    return r->state.epoch * each + batch / size;
}

td_status train_hash_open(train_run *r)
{
    if (r->args.files.hash_every == 0) {
        return TD_OK;
    }
    TD_CHECK(r->args.files.log_dir != NULL && !r->args.compute.graph, TD_E_ARG,
             "--hash-every writes into the folder of --log-dir: give that, and not %s, "
             "whose steps run unseen",
             r->args.words.graph);
    return hashes_open(r->args.files.log_dir, steps_before(r, r->state.batch), &r->log.hashes);
}

td_status train_hash(train_run *r, train_moment moment)
{
    int64_t batch = train_batches_asked(r), size = train_group_size(r);
    int64_t step = steps_before(r, batch) + 1;
    bool first = batch % size == 0;
    bool last = (batch + 1) % size == 0 || batch + 1 == td_loader_batches(r->loader);
    if (!train_is_due(step, r->args.files.hash_every) || !(moment == TRAIN_BEFORE ? first : last)) {
        return TD_OK;
    }
    td_checkpoint_options state = train_contents(r, "");
    return moment == TRAIN_BEFORE      ? hashes_before(r->log.hashes, step, &state)
           : moment == TRAIN_GRADIENTS ? hashes_gradients(r->log.hashes, td_parameters(r->net))
                                       : hashes_after(r->log.hashes, &state);
}

td_status train_print_fingerprint(const train_run *r)
{
    td_fingerprints f = { .count = 0 };
    td_status status = ranks_first() || td_saves_together(r->net)
                           ? td_fingerprint_at(&f, train_contents(r, ""), TD_HERE)
                           : TD_OK;
    if (status == TD_OK) {
        td_printf_rank0("fingerprint: %016" PRIx64 "\n", f.all);
    }
    td_fingerprints_free(&f);
    return status;
}
