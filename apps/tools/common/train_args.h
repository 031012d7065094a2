/* The options that all training apps share. */
#pragma once

#include "apps/tools/common/cli.h"
#include "apps/tools/common/reports.h"
#include "tandem.h"

/* What a program calls some of its options, for messages: "--lr", or "OPTIM.BASE_LR". */
typedef struct train_words {
    const char *lr, *data, *device, *precision, *graph;
} train_words;

/* Where and how a program computes. */
typedef struct train_compute {
    const char *device_name, *precision_name;
    const char *recompute; /* none, block, stage */
    bool winograd, autotune, graph, streamed, debug_nan;
    int64_t threads; /* 0: the device's default */
    bool pin;        /* threads on CPUs of their own */
} train_compute;

/* What a run writes, and what it goes on from. */
typedef struct train_files {
    const char *save, *save_model, *resume, *log_dir, *trace;
    int64_t save_every, save_every_steps, hash_every;
    bool save_async, auto_resume;
    bool fresh_optim;   /* a resumed run takes the weights, and not the optimizer's state */
    const char *report; /* the page; NULL: none */
    char report_folder[1024], report_trace[1024 + 16]; /* where --report puts what it is made of */
    int64_t report_port;                               /* --report-live; 0: none */
    struct report_live *live;                          /* rank 0's server; NULL: none */
} train_files;

/* What several processes do. */
typedef struct train_ranks {
    double timeout;        /* seconds that ranks wait for each other */
    const char *comm_hook; /* train_hook_read; NULL: none */
    const char *shard;     /* none, optimizer, gradients, parameters; NULL: none */
    const char *offload;   /* td_zero_options.offload; NULL: none */
    const char *wire;      /* none, bf16; NULL: none */
    int64_t leaves;        /* td_leaves_options.count; 0: none */
    const char *mesh;      /* of the processes (dist/comm/mesh.h); NULL: $TANDEM_MESH */
    int64_t slices, micro; /* td_tensor_parallel_options.slices, td_pipeline_options.micro */
    const char *schedule;  /* td_pipeline_options.schedule */
} train_ranks;

/* Options of a step. All zero: the tutorial's plain step. */
typedef struct train_recipe {
    int64_t accumulate;     /* batches whose mean gradient, over their samples, makes one step of
                               the optimizer; 0: 1. The last step of an epoch has the rest */
    double label_smoothing; /* of the cross-entropy */
    double clip_grad_norm;  /* gradients are shortened to this norm; 0: not */
    int64_t top_k;          /* the second accuracy; 0: not counted */
    double ema_decay;       /* of averaged weights; 0: none */
    bool drop_last;         /* a last batch that is not full is skipped */
} train_recipe;

typedef struct train_args {
    const char *data;
    int64_t epochs, batch_size, seed, workers;
    double lr;
    train_compute compute;
    train_files files;
    train_ranks ranks;
    train_recipe recipe;
    bool summary, quiet;
    reports reports;
    td_device device; /* compute.device_name, read by train_args_apply */
    train_words words;

    cli_option options[CLI_MAX_OPTIONS];
    char texts[CLI_MAX_OPTIONS][CLI_TEXT_BYTES]; /* that came from files */
    int option_count;
} train_args;

/* Writes the shared options into args->options, with the values in args as defaults; the app adds
 * its own with train_args_add and then calls cli_parse_rest. */
void train_args_options(train_args *args, const char *data_help, const char *save_help);
/* Copies a table of options, which ends with one that has no name. */
void train_args_add(train_args *args, const cli_option *table);

/* Of these only what concerns the machine and what a run tells about itself (--threads, --trace,
 * --profile, ...): for programs whose training is configured in another way. */
void train_args_machine_options(train_args *args);

/* --report, for programs that train. (train_report.c) */
void train_report_options(train_args *args);

/* The options of programs with several processes. */
void train_args_rank_options(train_args *args);
/* The option of a name, which there is. */
cli_option *train_args_find(train_args *args, const char *name);

/* After parsing: takes from the checkpoint of --resume (of the same task) what was set in that run
 * and not now, reads the device, sets its threads, seeds the default generator, switches
 * --debug-nan on. */
td_status train_args_apply(train_args *args, const char *task);

/* train_args_apply's part: sets options from the checkpoint (CLI_RESTORE, CLI_FIXED) that the
 * command line does not give. TD_E_MISMATCH: it gives another value for a CLI_FIXED one, or the
 * file is of another task. (train_save.c) */
td_status train_args_resume(train_args *args, const char *task);

typedef struct train_hook {
    const char *name; /* NULL: none */
    int rank;         /* PowerSGD's; others': 0 */
    int64_t start;
} train_hook;
/* Reads --comm-hook; false: the text is none of its forms. (train_hook.c) */
bool train_hook_read(const char *text, train_hook *hook);
bool train_hook_fits(const char *text);

/* Whether the text is a form of --mesh. (train_shard.c) */
bool train_mesh_fits(const char *text);

/* "bf16", "fp32 with winograd": for the line that says what a run is. */
const char *train_args_arithmetic(void);

/* 4 loader threads, but no more than there are CPUs. */
int64_t train_default_workers(void);
