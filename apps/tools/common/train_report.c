/* --report: what a page about the run is made of (settings, metrics, a trace), and the page at the
 * end. */
#include "apps/tools/common/train.h"
#include "apps/tools/report/live.h"
#include "apps/tools/report/report.h"
#include "dist/comm/collectives.h"
#include "dist/trace.h"
#include "nn/extra/inspect.h"
#include "tensor/storage.h"
#include "tensor/system/folders.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>

void train_report_options(train_args *args)
{
    const cli_option table[] = {
        cli_text("report", "FILE", &args->files.report,
                 "Write a page (HTML) at the end: curves, settings, and where time and memory go. "
                 "What it is made of goes into --log-dir; without one, into FILE without .html"),
        cli_int("report-live", &args->files.report_port, 1, 65535,
                "Serve the page of the run so far at http://127.0.0.1:N/, while it trains; with "
                "--report"),
        { 0 }
    };
    train_args_add(args, table);
}

/* From rank 0; all ranks stop if it cannot. */
static td_status serve_page(train_files *f)
{
    td_status status =
        ranks_first() ? report_live_open((int)f->report_port, f->log_dir, &f->live) : TD_OK;
    status = td_dist_is_initialized() ? td_group_agree(td_dist_world(), status) : status;
    if (status == TD_OK) {
        td_printf_rank0("the run so far: http://127.0.0.1:%d/\n", (int)f->report_port);
    }
    return status;
}

td_status train_report_begin(train_run *r)
{
    train_files *f = &r->args.files;
    if (f->report == NULL) {
        return f->report_port == 0
                   ? TD_OK
                   : td_fail(TD_E_ARG, "--report-live: give --report FILE, too: what the page is "
                                       "made of goes into its folder");
    }
    TD_CHECK(f->trace == NULL, TD_E_ARG,
             "--report writes a trace itself, into --log-dir: give one of --report and --trace");
    if (f->log_dir == NULL) { /* "out.html": "out". Others get an ending: no file is a folder */
        size_t size = strlen(f->report);
        bool html = size > 5 && strcmp(f->report + size - 5, ".html") == 0;
        snprintf(f->report_folder, sizeof f->report_folder, "%.*s%s", (int)(html ? size - 5 : size),
                 f->report, html ? "" : ".run");
        f->log_dir = f->report_folder;
    }
    int length = snprintf(f->report_trace, sizeof f->report_trace, "%s/trace.json", f->log_dir);
    TD_CHECK(length < (int)sizeof f->report_trace && strlen(f->report) < sizeof f->report_folder,
             TD_E_ARG, "--report %s: the name is too long", f->report);
    f->trace = f->report_trace;
    TD_TRY(td_make_folders(f->log_dir));
    TD_TRY(check_can_save(f->report));
    return f->report_port > 0 ? serve_page(f) : TD_OK;
}

/* ---- settings.json ---- */

static double rounded_mib(size_t bytes)
{
    return round(100 * (double)bytes / 1048576) / 100;
}

static cJSON *settings_of(const train_run *r)
{
    size_t flat = td_tensor_bytes(td_params_flat(td_parameters(r->net)));
    td_shard_stats kept = { flat, flat, td_optim_state_bytes(r->optim), .units = 0 };
    kept = train_shards(r) ? td_ddp_shard_stats(r->net) : kept;
    cJSON *all = cJSON_CreateObject();
    cJSON_AddStringToObject(all, "program", r->app);
    cJSON_AddStringToObject(all, "version", td_version());
    cJSON_AddStringToObject(all, "training data", r->data_name);
    cJSON_AddNumberToObject(all, "ranks", td_dist_world_size());
    cJSON_AddNumberToObject(all, "threads of a rank", td_threads(r->args.device));
    cJSON_AddNumberToObject(all, "values, MiB on a rank", rounded_mib(kept.values));
    cJSON_AddNumberToObject(all, "gradients, MiB on a rank", rounded_mib(kept.gradients));
    cJSON_AddNumberToObject(all, "optimizer's state, MiB on a rank", rounded_mib(kept.state));
    cJSON *options = cJSON_AddObjectToObject(all, "options");
    for (int i = 0; i < r->args.option_count; i++) {
        char value[CLI_TEXT_BYTES];
        cli_get(&r->args.options[i], value, sizeof value);
        cJSON_AddStringToObject(options, r->args.options[i].name, value);
    }
    return all;
}

td_status train_write_settings(const train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    if (!ranks_first()) {
        return TD_OK;
    }
    snprintf(path, sizeof path, "%s/settings.json", r->args.files.log_dir);
    cJSON *settings = settings_of(r);
    char *text = cJSON_Print(settings);
    cJSON_Delete(settings);
    FILE *out = text != NULL ? fopen(path, "w") : NULL;
    bool written = out != NULL && fprintf(out, "%s\n", text) > 0;
    written = out != NULL && fclose(out) == 0 && written;
    free(text);
    return written ? TD_OK : td_fail(TD_E_IO, "cannot write %s: %s", path, strerror(errno));
}

/* Rank 0 runs the model, all of whose values are here then. */
td_status train_show_summary(const train_run *r)
{
    TD_TRY(td_unshard(r->net));
    const td_shape *sample = &r->train->sample_shape;
    td_shape one = { .ndim = sample->ndim + 1, .dim = { 1 } };
    memcpy(&one.dim[1], sample->dim, (size_t)sample->ndim * sizeof one.dim[0]);
    td_status status = ranks_first() ? td_summary(r->net, one, stdout) : TD_OK;
    td_reshard(r->net);
    return status;
}

/* ---- the end ---- */

td_status train_report_end(train_run *r)
{
    train_files *f = &r->args.files;
    report_live_close(&f->live);
    TD_TRY(f->trace != NULL ? td_trace_close() : TD_OK);
    if (f->report == NULL || !ranks_first()) {
        return TD_OK;
    }
    TD_TRY(report_write(f->report, (char *[]){ (char *)(uintptr_t)f->log_dir }, 1));
    td_printf_rank0("report: %s\n", f->report);
    return TD_OK;
}
