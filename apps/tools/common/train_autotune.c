/* Autotuning during training: what is printed, and choices kept in checkpoints. */
#include "apps/tools/common/train.h"
#include "dist/graph/captured.h"

static void tell(train_run *r, const td_autotune_stats *f)
{
    if (f->chosen == 0 && r->so_far.tuned_before) {
        return; /* a checkpoint's hold */
    }
    if (r->so_far.tuned_before) {
        progress_print(&r->progress, "autotune: the checkpoint's choices are for other shapes or "
                                     "another device; they are made again");
    }
    if (f->chosen == 0) {
        bool cpu = r->args.device.type == TD_DEVICE_CPU;
        progress_print(&r->progress, "autotune: nothing to choose%s",
                       cpu ? ": on a CPU each convolution has one algorithm, by its shape" : "");
    } else {
        progress_print(&r->progress, "autotune: %d choices; %d timed in %.1f s, %d of earlier runs",
                       f->chosen, f->timed, f->seconds, f->chosen - f->timed);
    }
    if (f->left > 0) {
        progress_print(&r->progress,
                       "autotune: two minutes are over; %d problems are left to the "
                       "rules, the next run may go on",
                       f->left);
    }
}

td_status train_autotune_after_step(train_run *r)
{
    td_autotune_stats stats;
    if (!r->args.compute.autotune || r->so_far.tuned) {
        return TD_OK;
    }
    r->so_far.tuned = true;
    TD_TRY(td_autotune_agree(NULL, &stats));
    tell(r, &stats);
    return TD_OK;
}

/* Whether a version wrote the choices that kept them in another form; they are made again. */
static bool of_earlier_version(const char *text)
{
    return strncmp(text, "tandem-plans ", strlen("tandem-plans ")) == 0;
}

td_status train_autotune_resume(train_run *r)
{
    const char *path = r->args.files.resume;
    td_safetensors *file;
    if (!r->args.compute.autotune) {
        return TD_OK;
    }
    TD_TRY(td_safetensors_open(path, &file));
    const char *text = td_safetensors_metadata(file, "autotune");
    if (text != NULL && of_earlier_version(text)) {
        td_printf_rank0(
            "autotune: the choices of %s are an earlier version's; they are made again\n", path);
        text = NULL;
    }
    td_status status = text != NULL ? td_autotune_take(text, strlen(text)) : TD_OK;
    r->so_far.tuned_before = text != NULL && status == TD_OK;
    td_safetensors_close(file);
    return status == TD_OK ? TD_OK : td_fail_context(status, "%s: its 'autotune'", path);
}
