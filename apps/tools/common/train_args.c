/* The options that training programs share: their table, checks and effects. */
#include "apps/tools/common/train_args.h"

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
        cli_flag("debug-nan", &args->compute.debug_nan,
                 "Check every operation for NaN and infinity, and name the first that makes one "
                 "(slow)"),
        cli_flag("profile", &args->reports.profile,
                 "Print at the end (and on Ctrl-C) where the time went, by kernel and module"),
        cli_text("profile-limits", "G,B", &args->reports.limits,
                 "What --profile calls 100 %: GFLOP/s and GB/s; otherwise measured at the start"),
        cli_flag("memory", &args->reports.memory,
                 "Print at the end what memory is for: the plan of a step, its peak, and what "
                 "stays"),
        cli_text("memory-picture", "FILE", &args->reports.picture,
                 "The same, and draw the plan (SVG)"),
        { 0 }
    };
    train_args_add(args, table);
}

static void run_options(train_args *args, const char *data_help)
{
    const cli_option table[] = {
        cli_text("data", "PATH", &args->data, data_help, .first = true),
        cli_int("epochs", &args->epochs, 1, 1e6, "Passes over the training data",
                .resume = CLI_RESTORE, .first = true),
        cli_int("batch-size", &args->batch_size, 1, 1 << 20, "Images in a step",
                .resume = CLI_FIXED, .first = true),
        cli_real("lr", &args->lr, 1e-12, 1e6, "Learning rate", .resume = CLI_RESTORE,
                 .first = true),
        cli_int("seed", &args->seed, 0, 9e15,
                "Seed of all that is random: equal seeds give equal runs, bit for bit",
                .resume = CLI_FIXED),
        cli_int("workers", &args->workers, 0, 256, "Threads that prepare batches ahead; 0: none"),
        { 0 }
    };
    train_args_add(args, table);
}

static void device_options(train_args *args)
{
    const cli_option table[] = {
        cli_text("device", "NAME", &args->compute.device_name,
                 "Where to compute: cpu, cpu:1, cuda, cuda:1; with several processes, cuda is the "
                 "GPU of each one's local rank",
                 .first = true),
        cli_text("precision", "NAME", &args->compute.precision_name,
                 "Arithmetic of convolutions and matrix products: fp32; bf16 with f32 weights, "
                 "sums and statistics (mixed precision); or bf16x3, f32 split into three products; "
                 "on GPUs also tf32, and fp16 with a loss scaler",
                 .choices = "fp32|bf16|bf16x3|tf32|fp16", .resume = CLI_RESTORE, .first = true),
        cli_flag("winograd", &args->compute.winograd,
                 "Let 3x3 convolutions in fp32 use Winograd's transform: faster, relative error "
                 "2e-6",
                 .resume = CLI_RESTORE),
        cli_flag("autotune", &args->compute.autotune,
                 "Choose convolutions' algorithms by timing, after the first step, and keep the "
                 "choices for later runs; on GPUs, as a CPU has nothing to choose",
                 .resume = CLI_RESTORE, .unwritten = "no"),
        cli_flag("streamed", &args->compute.streamed,
                 "GPUs: send each batch, though the images would fit into the GPU's memory: what "
                 "they would take is left to the steps"),
        cli_flag("graph", &args->compute.graph,
                 "GPUs: record a training step as a CUDA graph, and replay it: the same bits, and "
                 "the host no longer in the way of small steps"),
        cli_text("recompute", "NAME", &args->compute.recompute,
                 "Keep only the inputs of the model's blocks or stages, and run them again in "
                 "backward: less memory, more time, the same bits",
                 .choices = "none|block|stage"),
        { 0 }
    };
    train_args_add(args, table);
}

static void file_options(train_args *args, const char *save_help)
{
    const cli_option table[] = {
        cli_text("save", "PATH", &args->files.save, save_help, .first = true),
        cli_int("save-every", &args->files.save_every, 0, 1e6,
                "Epochs between two checkpoints; 0: none"),
        cli_int("save-every-steps", &args->files.save_every_steps, 0, 1e9,
                "Write a checkpoint after every N steps, too; 0: off"),
        cli_flag("save-async", &args->files.save_async,
                 "Let training go on while the disk writes a checkpoint"),
        cli_text("save-model", "PATH", &args->files.save_model,
                 "Write the trained model alone at the end, without the run's state: for predict, "
                 "for td_load and for PyTorch"),
        cli_text("resume", "FILE", &args->files.resume,
                 "Continue from a checkpoint, with the options that it was trained with",
                 .first = true),
        cli_flag("auto-resume", &args->files.auto_resume,
                 "Continue from the latest checkpoint if there is one: for programs that are "
                 "started again, as tdrun does"),
        cli_text("log-dir", "DIR", &args->files.log_dir,
                 "Write metrics.csv, metrics.jsonl and a TensorBoard event file into this folder"),
        cli_int("hash-every", &args->files.hash_every, 0, 1e9,
                "Write hashes of every N-th step into --log-dir, of all that it computes and "
                "changes: apps/compare finds where two runs part; 0: off"),
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
    run_options(args, data_help);
    device_options(args);
    file_options(args, save_help);
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
        cli_text(
            "offload", "PLACE", &args->ranks.offload,
            "With --shard parameters: keep this process's part in files in a folder, of which "
            "the system holds in memory what fits; or, with a GPU, in the host's memory (cpu): "
            "for models larger than memory"),
        cli_text("wire", "DTYPE", &args->ranks.wire,
                 "With --shard parameters: bf16 sends matrices as bf16, half the bytes; with "
                 "--precision bf16 the weights stay the same, bit for bit",
                 .choices = "none|bf16", .resume = CLI_RESTORE, .unwritten = "none"),
        cli_int(
            "leaves", &args->ranks.leaves, 0, TD_LEAVES_MOST,
            "Cut a step into N leaves, each with a batch of its own: the weights are the same, "
            "bit for bit, on 1 to N processes; 0: one for each process, which rounds in its own "
            "way",
            .resume = CLI_RESTORE, .unwritten = "0"),
        cli_text("mesh", "DIM=N,...", &args->ranks.mesh,
                 "How the processes are arranged: dp=4; rep=2,dp=2 (with --shard: two replicas, "
                 "each cut into two); gpt: pp=2,dp=2,tp=2 (two stages, with matrices in two "
                 "slices, of a model); *: what is left. Without: TANDEM_MESH, which tdrun --mesh "
                 "sets",
                 .choices = "DIM=N,... with pp, rep, dp, tp", .fits = train_mesh_fits),
        { 0 }
    };
    train_args_add(args, table);
}

bool train_args_given(const train_args *args, const char *option)
{
    for (int i = 0; i < args->option_count; i++) {
        if (strcmp(args->options[i].name, option) == 0) {
            return args->options[i].given;
        }
    }
    return false;
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
    int local = td_dist_is_initialized() ? td_dist_local_rank() : 0;
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
        bool several = td_dist_is_initialized();
        TD_TRY(td_pin_threads(args->device, several ? td_dist_local_rank() : 0,
                              several ? td_dist_local_world_size() : 1));
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
    static char text[32];
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
