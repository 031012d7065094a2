/* Checkpoints: saving and loading a model, or a whole training run, as a safetensors file.
 *
 *     td_save("net.safetensors", net);                         a model alone
 *     td_load("net.safetensors", net);                         into a model that exists
 *     td_module *net = td_load_model("net.safetensors");       makes the model, too
 *
 *     td_checkpoint_save("run.safetensors", net, .optim = optim, .loader = loader);
 *     td_checkpoint_load("run.safetensors", net, .optim = optim, .loader = loader);
 *                                                              a training run, to resume it
 *
 * Files. A file holds the model's parameters and buffers under their paths, which are torchvision's
 * names, in PyTorch's element order (row-major OIHW). The optimizer's state is stored as
 * "optimizer.<path>.<what>" with PyTorch's names ("exp_avg", "momentum_buffer"), averages of the
 * weights as "ema.<path>", gradients in the middle of an accumulation as "gradient.<path>", and
 * tensors of your own as "extra.<name>". Everything else (the loader's place, steps, random states,
 * your metadata) is text in the header's metadata. The metadata value
 * "tandem.format" is the version of the format, 1; files without the value have version 0. Loading
 * a file of an unknown version fails (TD_E_FORMAT).
 *
 * Saving is atomic. The library writes a temporary file next to the target
 * (PATH.tmp.HOST.PID.RANDOM), syncs and renames it: at any moment the path holds a complete
 * checkpoint, the old or the new one. The new file has the mode of the old one and, where the
 * system allows that, its owner and group (no access control lists); a symbolic link stays, and the
 * file that it leads to is replaced. Other hard links to the old file keep the old file. A
 * read-only file, a device and a pipe are not replaced, and the file's folder must be writable. A
 * relative path means what it means at the time of the call, also if the file is written in the
 * background. A process that is killed while it saves leaves its temporary file; the next save to
 * the same path removes that file. A file in memory (memfd_create), whose path is /proc/self/fd/N,
 * is written in its place. */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

/* ---- a model alone ---- */

/* Saves a model's parameters and buffers, and the metadata that td_load_model needs. PyTorch
 * takes all of them as a state_dict (strict=True):
 * net.load_state_dict(safetensors.torch.load_file(path)). Under DDP only one rank saves. TD_E_IO:
 * writing failed; an older file at path is unchanged. */
td_status td_save_at(const char *path, td_module *net, td_site at);

/* Loads a file that td_save, td_checkpoint_save or PyTorch wrote into an existing model. All names
 * and shapes must fit, as for td_checkpoint_load. Optimizer state is ignored. If the file has
 * averages of the weights ("ema."), td_load loads them in place of the weights, because a run with
 * averages is evaluated with them. */
td_status td_load_at(const char *path, td_module *net, td_site at);

typedef struct td_load_model_options {
    int begin_; /* for the library: lets the macro take an empty list */
    const char *path;
    const char *arch; /* td_model's name of the model; NULL: the name in the file's metadata */
} td_load_model_options;
/* Makes the model that a file describes, on the CPU, loads the file as td_load does, and returns
 * the model in evaluation mode. You free the model by td_module_free. If the metadata do not say
 * the number of classes or BoTNet's image size, the shapes of the tensors do; other options of the
 * model have their defaults. NULL with td_last_error(): no such file, no arch, or the file's
 * tensors do not fit the model. */
td_module *td_load_model_at(td_load_model_options options, td_site at);

/* ---- a training run ---- */

/* Metadata of your own. Keys that begin with "tandem.", "model.", "optimizer.", "ema.", "scaler",
 * "loader.", "random.", "dropout." or "parameters." are the library's. */
typedef struct td_metadata {
    const char *key, *value;
} td_metadata;

typedef struct td_saving td_saving; /* a file that a thread is writing */

/* What to save or load. All fields but path and model may be zero. The caller keeps everything. */
typedef struct td_checkpoint_options {
    int begin_; /* for the library: lets the macro take an empty list */
    const char *path;
    td_module *model;
    struct td_optim *optim;   /* nn/optim/optim.h: state, step counts and learning rate */
    struct td_ema *ema;       /* nn/extra/ema.h; not while a test runs on the averages
                                 (td_ema_swap): the model must hold its own weights */
    struct td_scaler *scaler; /* nn/extra/scaler.h: scale and counts */
    struct td_loader *loader; /* data/data.h: its place in its epoch, and the epoch's order; with
                                 the loader also what .with_random says */
    const struct td_named_tensor *extra; /* nn/module.h: tensors of your own, persistent, on any
                                            device; their names begin with "extra." */
    int extra_count;
    bool with_random; /* the states of the default generator and of every Dropout: a resumed run
                         draws the same numbers as an uninterrupted run. In the middle of an epoch
                         give .loader, too */
    td_saving **background;      /* for saving: NULL, or see td_saving_wait */
    const td_metadata *metadata; /* for saving; td_checkpoint_metadata reads them */
    int metadata_count;
} td_checkpoint_options;

/* Saves a training run. A run that loads the file goes on from here with the same bits. In the
 * middle of an epoch give .loader. In the middle of a gradient accumulation (between a td_backward
 * and its td_optim_step) give .optim: then the gradients are in the file, too. Call it outside of a
 * step or after its end. TD_E_UNSUPPORTED: in the middle of an accumulation with td_zero, where
 * each rank has only a part of the state; save after td_optim_step.
 *
 * Under DDP rank 0 calls td_checkpoint_save. If td_saves_together(net) is true, all ranks call it:
 * rank 0 writes the file, and the other ranks send it the parts that only they have, one tensor at
 * a time. All ranks return the same outcome. They wait for rank 0 at most `timeout` (td_dist_init):
 * choose it longer than writing the file takes.
 *
 * Without .optim one rank saves the model, unless its values are sharded. A file does not show that
 * a model was sharded. What each rank has of its own is in the file once for each rank. */
td_status td_checkpoint_save_at(td_checkpoint_options options, td_site at);

/* Whether ranks have something of their own that must be in the checkpoint of a training run: with
 * td_zero, with PowerSGD (the gradients that a rank has not sent yet), and in the middle of an
 * accumulation between td_ddp_no_sync_begin and _end (its gradients). The same on all ranks:
 *     if (td_dist_rank() == 0 || td_saves_together(net)) { td_checkpoint_save(...); } */
bool td_saves_together(td_module *net);

/* Saving while training goes on:
 *
 *     td_saving *saving = NULL;
 *     td_checkpoint_save(path, net, .optim = optim, .background = &saving);     many times
 *     td_saving_wait(&saving);                                                  at the end
 *
 * td_checkpoint_save writes everything into the operating system's memory (the page cache) and
 * returns. If that fails, for example because the disk is full, it returns the error. A thread then
 * waits until the disk has the file, and gives the file its name; until then the path leads to the
 * old file. (On a file system without a page cache, such as some network file systems,
 * td_checkpoint_save waits for the disk.) One save runs at a time: td_checkpoint_save first calls
 * td_saving_wait; if that fails, td_checkpoint_save returns the error and saves nothing. A save
 * without .background does not wait: call td_saving_wait before such a save to the same path, or
 * the thread may replace the newer file by its older one.
 *
 * td_saving_wait waits for the thread, sets *saving to NULL, and returns the outcome. NULL is fine.
 * Call td_saving_wait before the program ends and before the model is freed. If several ranks save
 * together, all ranks call td_saving_wait, and all return the same outcome. A child process made by
 * fork must neither wait for its parent's saving nor cancel it: the child has no such thread, and
 * would wait forever. td_saving_is_written says whether this rank's thread is done; saving must not
 * be NULL. */
td_status td_saving_wait(td_saving **saving);
bool td_saving_is_written(const td_saving *saving);

/* td_saving_wait without the other ranks: for a rank that fails, when the other ranks do not call
 * td_saving_wait with it. The path holds the new file if it could be written, complete. NULL is
 * fine. */
void td_saving_cancel(td_saving **saving);

/* Loads a file into an existing model, optimizer, averages, scaler, loader and extra tensors. With
 * .loader the next td_loader_next gives the batch that would have come next, and td_loader_epoch
 * returns its epoch. (data/data.h says what happens on another number of ranks.) A parameter whose
 * gradient is not in the file has no gradient afterwards. Each rank gets back what it had of its
 * own (td_saves_together); on another number of ranks each gets the mean of what the ranks had, so
 * that the next mean gradient has all of it, once.
 *
 * All names and shapes must fit, and the file must hold everything that the options ask for
 * (optim, ema, loader, extra, with_random); a file without a scaler is fine, and leaves the scaler
 * unchanged. If something is missing or does not fit, TD_E_MISMATCH lists the differences, and
 * nothing is changed. If reading fails on the way, TD_E_IO names the tensor; what comes before this
 * tensor in the model has been loaded. Float dtypes are converted. Names with the prefixes of
 * PyTorch's wrappers ("module.", "_orig_mod.") are accepted. "num_batches_tracked" is ignored if
 * the model does not count batches (.cumulative of td_nn_batch_norm2d), and so are optimizer state,
 * averages and extra tensors that the options do not ask for. Settings of the optimizer other than
 * the learning rate, and its groups, stay as you made them.
 *
 * Under DDP either all ranks load, or you load before td_ddp: if td_parameters was called on the
 * model, its parameters get the memory order that they had when the file was made, and that order
 * decides the buckets. (Under sharding their order does not change.)
 *
 * With sharding all ranks load. Each reads the tensors of which it keeps a part, one at a time. If
 * the file does not fit on one rank, all return that rank's error, and nothing is changed. */
td_status td_checkpoint_load_at(td_checkpoint_options options, td_site at);

/* Copies one metadata value of a file into value, which has `size` bytes. TD_E_NOTFOUND: the file
 * has no such key. */
td_status td_checkpoint_metadata(const char *path, const char *key, char *value, size_t size);

TD_END_C

/* ---- what you call ---- */

#define td_save(...) td_save_at(__VA_ARGS__, TD_HERE)
#define td_load(...) td_load_at(__VA_ARGS__, TD_HERE)
#define td_load_model(...) TD_CALL(td_load_model, TD_OPT1(path, __VA_ARGS__))
#define td_checkpoint_save(...)                                                                    \
    td_checkpoint_save_at((td_checkpoint_options){ TD_OPT2(path, model, __VA_ARGS__) }, TD_HERE)
#define td_checkpoint_load(...)                                                                    \
    td_checkpoint_load_at((td_checkpoint_options){ TD_OPT2(path, model, __VA_ARGS__) }, TD_HERE)
