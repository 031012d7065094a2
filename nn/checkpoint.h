/* Checkpoints: safetensors files with torchvision's names.
 *
 * A file holds the model's parameters and buffers under their paths in PyTorch's element order
 * (row-major OIHW), the optimizer's state under "optimizer.<path>.<what>", averages of the weights
 * under "ema.<path>", tensors of the program's own under "extra.<name>", and the rest (epoch, step,
 * random states, the schedule's place, anything) as strings in the header's metadata. It is
 * written to a temporary file beside the target (PATH.tmp.HOST.PID; only a killed process leaves
 * one behind, and the next saving at PATH removes it), synced and renamed: at any moment the path
 * holds a whole checkpoint, the old one or the new. */
#ifndef TD_NN_CHECKPOINT_H
#define TD_NN_CHECKPOINT_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef struct td_metadata {
    const char *key, *value;
} td_metadata;

/* optim, ema and scaler may be NULL. extra: tensors of the program's own, whose names begin with
 * "extra."; persistent, on any device. with_random: also the state of the default generator, and of
 * every Dropout, so that a resumed run draws the same numbers as an uninterrupted run. metadata:
 * for saving only; keys that begin with "tandem.", "model.", "optimizer.", "ema.", "scaler",
 * "random.", "dropout." or "parameters." are the library's. */
typedef struct td_checkpoint {
    td_module *model;
    struct td_optim *optim;   /* nn/optim/optim.h */
    struct td_ema *ema;       /* nn/optim/ema.h; not while it is swapped with the model's values */
    struct td_scaler *scaler; /* nn/optim/scaler.h: its scale and counts */
    const struct td_named_tensor *extra; /* nn/module.h */
    int extra_count;
    bool with_random;
    const td_metadata *metadata;
    int metadata_count;
} td_checkpoint;
/* The metadata value "tandem.format" is the version of the file, 1; files without the key have
 * version 0. All functions below refuse a version that they do not know (TD_E_FORMAT). */
td_status td_checkpoint_save(const char *path, const td_checkpoint *checkpoint);

/* Loads into an existing model and, if given, optimizer: its state, step counts and learning rate;
 * other settings and groups are those that it was made with; and, if given, the averages of the
 * weights with the number of updates. All names and shapes must fit, and what is asked for must be
 * there (optim, ema, extra, with_random; but a file without a scaler leaves it as it is): otherwise
 * TD_E_MISMATCH lists the differences and nothing is changed. Float types are converted. Names with
 * a "module." prefix are accepted; "num_batches_tracked" is ignored, and so are an optimizer's
 * state, averages and extra tensors that are not asked for. If the model's parameters are laid out
 * (td_parameters), they get the order in memory that they had when the file was made; under DDP
 * that decides the buckets, so either all ranks load, or it is done before td_ddp. */
td_status td_checkpoint_load(const char *path, const td_checkpoint *checkpoint);

/* ---- a model alone ---- */

/* Saves a model's parameters and buffers, and what td_load_model needs, without a training run's
 * state. The tensors are a state_dict's, so PyTorch's load_state_dict takes them strictly:
 * net.load_state_dict(safetensors.torch.load_file(path)). */
td_status td_save_at(const char *path, td_module *net, td_site at);
#define td_save(...) td_save_at(__VA_ARGS__, TD_HERE)

/* Loads a file of td_save, of PyTorch or of a training run into a model that exists. All names and
 * shapes must fit, as for td_checkpoint_load. Optimizer state is ignored; averages of the weights
 * ("ema.") are loaded in place of the weights, since a run with averages tests with them. */
td_status td_load_at(const char *path, td_module *net, td_site at);
#define td_load(...) td_load_at(__VA_ARGS__, TD_HERE)

typedef struct td_load_model_options {
    int begin_; /* not for you: lets the macro below take an empty list */
    const char *path;
    const char *arch; /* td_model's name for the model; NULL: the file's metadata name it */
} td_load_model_options;
/* Makes the model that a file holds, on the CPU, loads the file as td_load does, and returns the
 * model in evaluation mode. Where the metadata do not say it, the number of classes and BoTNet's
 * image size follow from the shapes; other options of the model are the defaults. NULL with
 * td_last_error(): no such file, no arch, another model. */
td_module *td_load_model_at(td_load_model_options options, td_site at);
#define td_load_model(...)                                                                         \
    td_load_model_at((td_load_model_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

/* One metadata value of a file. TD_E_NOTFOUND: no such key. */
td_status td_checkpoint_metadata(const char *path, const char *key, char *value, size_t size);

TD_END_C

#endif
