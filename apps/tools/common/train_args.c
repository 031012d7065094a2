/* The options that training programs share: their table, checks and effects. */
#include "apps/tools/common/train_args.h"
#include "apps/tools/common/ranks.h"

#include "dist/leaves/leaves.h"
#include "dist/comm/launch/error_file.h"
#include "tensor/tune/tune.h"
#include "tensor/extend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void train_args_add(train_args *args, const cli_option *table)
{
    for (; table->name != NULL; table++) {
        TD_REQUIRE(args->option_count < CLI_MAX_OPTIONS, TD_HERE, "no room for --%s", table->name);
        args->options[args->option_count++] = *table;
    }
}

void train_args_machine_options(train_args *args)
{
    const cli_option table[] = {
        cli_int("threads", &args->compute.threads, 0, 1024,
                "Threads that compute; 0: all CPUs. Results do not depend on it"),
        cli_flag("pin", &args->compute.pin,
                 "Bind each thread to a CPU of its own; processes on one host take different ones"),
        cli_text("trace", "FILE", &args->files.trace,
                 "Write a timeline for Perfetto or chrome://tracing"),
        cli_flag("summary", &args->summary, "Print the model's layers first"),
        cli_flag("quiet", &args->quiet,
                 "Print no lines of steps and epochs; results and errors stay"),
        cli_flag(
            "debug-nan", &args->compute.debug_nan,
            "Check every operation for NaN and infinity, and name the first that makes one (slow)"),
        cli_flag("profile", &args->reports.profile,
                 "Print at the end (and on Ctrl-C) where the time went, by kernel and module"),
        cli_text("profile-limits", "G,B", &args->reports.limits,
                 "What --profile calls 100 %: GFLOP/s and GB/s; otherwise measured at the start"),
        cli_text("profile-kernels", "FILE", &args->reports.kernels,
                 "--profile, and write what kernels cost, for tdrun --sim --kernels FILE"),
        cli_flag(
            "memory", &args->reports.memory,
            "Print at the end what memory is for: the plan of a step, its peak, and what stays"),
        cli_text("memory-picture", "FILE", &args->reports.picture,
                 "The same, and draw the plan (SVG)"),
        { 0 }
    };
    train_args_add(args, table);
}

void train_args_options(train_args *args, const char *data_help, const char *save_help)
{
    args->words = (train_words){ "--lr", "--data", "--device", "--precision", "--graph" };
    args->compute.device_name = "cpu";
    args->compute.precision_name = "fp32";
    args->compute.recompute = "none";
    const cli_option table[] = {
#include "apps/tools/common/options.def"
        { 0 }
    };
    train_args_add(args, table);
    train_report_options(args);
    train_args_machine_options(args);
}

void train_args_rank_options(train_args *args)
{
    args->ranks.timeout = 300;
    args->ranks.comm_hook = args->ranks.shard = args->ranks.wire = "none";
    const cli_option table[] = {
        cli_real("timeout", &args->ranks.timeout, 0.1, 1e6,
                 "Seconds that processes wait for each other", .argument = "S"),
        cli_text("comm-hook", "NAME", &args->ranks.comm_hook,
                 "What travels for gradients: none (they themselves, in f32), bf16, fp16, or "
                 "powersgd[:RANK[:START]]: two factors of that rank (1) for each matrix, after "
                 "START (1000) plain steps",
                 .choices = "none|bf16|fp16|powersgd[:RANK[:START]]", .fits = train_hook_fits,
                 .resume = CLI_RESTORE, .unwritten = "none"),
        cli_text("shard", "WHAT", &args->ranks.shard,
                 "What the processes share instead of each keeping all of it: none; optimizer (its "
                 "state: ZeRO-1); gradients (too: ZeRO-2); parameters (too: ZeRO-3, FSDP). The "
                 "weights are those of none, bit for bit",
                 .choices = "none|optimizer|gradients|parameters", .resume = CLI_RESTORE,
                 .unwritten = "none"),
        cli_text("offload", "PLACE", &args->ranks.offload,
                 "With --shard parameters: keep this process's part in files in a folder, of which "
                 "the system holds in memory what fits; or, with a GPU, in the host's memory "
                 "(cpu): for models larger than memory"),
        cli_text("wire", "DTYPE", &args->ranks.wire,
                 "With --shard parameters: bf16 sends matrices as bf16, half the bytes; with "
                 "--precision bf16 the weights stay the same, bit for bit",
                 .choices = "none|bf16", .resume = CLI_RESTORE, .unwritten = "none"),
        cli_int(
            "leaves", &args->ranks.leaves, 0, TD_LEAVES_MOST,
            "Cut a step into N leaves, each with a batch of its own: the weights are the same, bit "
            "for bit, on 1 to N processes; 0: one for each process, which rounds in its own way",
            .resume = CLI_RESTORE, .unwritten = "0"),
        cli_text(
            "mesh", "DIM=N,...", &args->ranks.mesh,
            "How the processes are arranged: dp=4; rep=2,dp=2 (with --shard: two replicas, each "
            "cut into two); gpt: pp=2,dp=2,tp=2 (two stages, with matrices in two slices, of a "
            "model); *: what is left. Without: TANDEM_MESH, which tdrun --mesh sets",
            .choices = "DIM=N,... with pp, rep, dp, tp", .fits = train_mesh_fits),
        { 0 }
    };
    train_args_add(args, table);
}

cli_option *train_args_find(train_args *args, const char *name)
{
    int i = 0;
    while (i < args->option_count && strcmp(args->options[i].name, name) != 0) {
        i++;
    }
    TD_REQUIRE(i < args->option_count, TD_HERE, "there is no option --%s", name);
    return &args->options[i];
}

/* What --debug-nan finds ends the run; it is no reason for a core file. */
static void on_not_finite(const char *message, void *user)
{
    (void)user;
    td_error_report(message);
    fflush(stdout);
    fprintf(stderr, "%s\n", message);
    _exit(EXIT_FAILURE);
}

/* "cuda" alone means one GPU for each process of this host: the one of its local rank. */
static td_status choose_device(const train_args *args, td_device *device)
{
    char name[32];
    int local = ranks_local();
    if (strcmp(args->compute.device_name, "cuda") != 0 || local == 0) {
        td_status status = td_device_parse(args->compute.device_name, device);
        return status == TD_OK ? TD_OK : td_fail_context(status, "%s", args->words.device);
    }
    snprintf(name, sizeof name, "cuda:%d", local);
    td_status status = td_device_parse(name, device);
    return status == TD_OK
               ? TD_OK
               : td_fail_context(status, "%s cuda, local rank %d", args->words.device, local);
}

td_status train_args_apply(train_args *args, const char *task)
{
    if (args->files.resume != NULL) {
        TD_TRY(train_args_resume(args, task));
    }
    TD_TRY(choose_device(args, &args->device));
    if (args->compute.threads > 0) {
        bool gpu = args->device.type != TD_DEVICE_CPU; /* its host's threads, then */
        TD_TRY(td_set_threads(gpu ? TD_CPU : args->device, (int)args->compute.threads));
    }
    if (args->compute.pin) {
        TD_TRY(td_pin_threads(args->device, ranks_local(), ranks_local_size()));
    }
    td_math math = { .winograd = args->compute.winograd };
    TD_REQUIRE(td_precision_parse(args->compute.precision_name, &math.precision), TD_HERE,
               "--precision %s is none of its choices", args->compute.precision_name);
    TD_TRY(td_precision_check(args->device, math.precision));
    td_set_math(math);
    td_set_autotune(args->compute.autotune);
    td_manual_seed((uint64_t)args->seed);
    td_set_debug_nan(args->compute.debug_nan);
    if (args->compute.debug_nan) {
        td_set_fatal_handler(on_not_finite, NULL);
    }
    args->reports.device = args->device;
    return reports_begin(&args->reports);
}

const char *train_args_arithmetic(void)
{
    static _Thread_local char text[32];
    td_math math = td_math_now();
    snprintf(text, sizeof text, "%s%s", td_precision_name(math.precision),
             math.winograd ? " with winograd" : "");
    return text;
}

int64_t train_default_workers(void)
{
    int cpus = td_count_cpus();
    return cpus < 4 ? cpus : 4;
}
