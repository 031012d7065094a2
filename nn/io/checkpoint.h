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
 * relative path is looked up in the call, also where the file is written in the background. A
 * process that is killed while it saves leaves its temporary file; the next saving to the same path
 * removes that file. */
#ifndef TD_NN_IO_CHECKPOINT_H
#define TD_NN_IO_CHECKPOINT_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

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
    bool with_random; /* also the states of the default generator and of every Dropout: a resumed
                         run draws the same numbers as an uninterrupted run. In mid-epoch give
                         .loader, too */
    td_saving **background;      /* for saving: NULL, or see td_saving_wait */
    const td_metadata *metadata; /* for saving; td_checkpoint_metadata reads them */
    int metadata_count;
} td_checkpoint_options;

/* Saves a training run, so that a run that loads it goes on where this one was, with the same bits:
 * between epochs, in mid-epoch, and, with .optim, in the middle of a gradient accumulation (between
 * a td_backward and its td_optim_step), whose gradients are in the file then. Call it outside of a
 * step or behind its end. TD_E_UNSUPPORTED: in the middle of an accumulation, and the ranks have
 * each a window of the state (td_zero): save after td_optim_step.
 *
 * Under DDP one rank saves, unless ranks have something of their own (td_saves_together): then all
 * ranks call td_checkpoint_save. Rank 0 writes the file; the other ranks send rank 0 the parts that
 * they alone have, one tensor at a time. All ranks return the same outcome. So they wait for rank
 * 0's disk, as in td_saving_wait, no longer than the `timeout` of td_dist_init: let that be more
 * than the disk needs for the file. A model alone (without .optim) is saved by one rank, unless its
 * values are sharded. What is sharded is in the file as one process has it; what each rank has of
 * its own is there once for each rank. */
td_status td_checkpoint_save_at(td_checkpoint_options options, td_site at);

/* Whether ranks have something of their own that belongs into the checkpoint of a training run:
 * with td_zero, with PowerSGD (the gradients that a rank has not sent yet), and in the middle of an
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
 * returns; a failure so far, a full disk for example, is its status. A thread waits until the disk
 * has the file, and gives the file its name: until then the path holds the old file. (A file system
 * without a page cache, as some network file systems are, makes td_checkpoint_save wait for the
 * disk.) One save runs at a time: td_checkpoint_save first calls td_saving_wait; if that fails,
 * td_checkpoint_save returns the error and saves nothing. A save without .background does not wait:
 * call td_saving_wait before such a save to the same path, or the thread may put its older file in
 * the newer one's place.
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
 * .loader the next td_loader_next gives the batch that would have come next (data/data.h says what
 * holds on another number of ranks), and td_loader_epoch tells its epoch. Gradients that the file
 * does not have are none afterwards. What each rank had of its own (td_saves_together) it has
 * again; on another number of ranks each has the mean of what the ranks had, so that the next mean
 * gradient has all of it, once.
 *
 * All names and shapes must fit, and the file must hold everything that the options ask for
 * (optim, ema, loader, extra, with_random); a file without a scaler is fine, and leaves the scaler
 * unchanged. If something is missing or does not fit, TD_E_MISMATCH lists the differences, and
 * nothing is changed. If reading fails on the way, TD_E_IO names the tensor; what comes before this
 * tensor in the model is loaded then. Float dtypes are converted. Names with the prefixes of
 * PyTorch's wrappers ("module.", "_orig_mod.") are accepted. "num_batches_tracked" is ignored if
 * the model does not count batches (.cumulative of td_nn_batch_norm2d), and so are optimizer state,
 * averages and extra tensors that the options do not ask for. Settings of the optimizer other than
 * the learning rate, and its groups, stay as you made them.
 *
 * With sharding, where all ranks save, all ranks also load. Each reads the tensors of which it
 * keeps something, one at a time. If the file does not fit on one rank, all return that rank's
 * error, and nothing is changed.
 *
 * If td_parameters was called on the model, its parameters get the memory order that they had when
 * the file was made (not those of a model with a sharded optimizer, whose order stays). Under DDP
 * that order decides the buckets: either all ranks load, or you load before td_ddp. */
td_status td_checkpoint_load_at(td_checkpoint_options options, td_site at);

/* Copies one metadata value of a file into value, which has `size` bytes. TD_E_NOTFOUND: the file
 * has no such key. */
td_status td_checkpoint_metadata(const char *path, const char *key, char *value, size_t size);

TD_END_C

/* ---- what you call ---- */

#define td_save(...) td_save_at(__VA_ARGS__, TD_HERE)
#define td_load(...) td_load_at(__VA_ARGS__, TD_HERE)
#define td_load_model(...)                                                                         \
    td_load_model_at((td_load_model_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_checkpoint_save(...)                                                                    \
    td_checkpoint_save_at((td_checkpoint_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_checkpoint_load(...)                                                                    \
    td_checkpoint_load_at((td_checkpoint_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
