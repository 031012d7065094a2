/* What saving and loading checkpoints share. Users do not include this. */
#ifndef TD_NN_IO_CHECKPOINT_INTERNAL_H
#define TD_NN_IO_CHECKPOINT_INTERNAL_H

#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"

/* Names in a file. Of tensors: "optimizer.<path>.<what>", "ema.<path>", "extra.<name>". Of
 * metadata: */
#define TD_KEY_OPTIMIZER "optimizer."             /* what all of an optimizer's begin with */
#define TD_KEY_OPTIMIZER_KIND "optimizer.kind"    /* "adam" */
#define TD_KEY_OPTIMIZER_LR "optimizer.lr"        /* decimal */
#define TD_KEY_OPTIMIZER_STEP "optimizer.%s.step" /* of each parameter; missing: 0 */
#define TD_KEY_EMA "ema."                         /* what all of an average's begin with */
#define TD_KEY_EMA_UPDATES "ema.updates"          /* decimal */
#define TD_KEY_EXTRA "extra."                     /* what tensors of the program's own begin with */
#define TD_KEY_SCALER "scaler"                    /* a loss scaler: "scale good skipped" */
#define TD_KEY_RANDOM "random.default"            /* td_generator_to_text */
#define TD_KEY_DROPOUT "dropout.%s"               /* of each Dropout: "seed calls" */
#define TD_KEY_ORDER "parameters.order"           /* in memory; missing: as registered */

#define TD_KEY_FORMAT "tandem.format"        /* decimal; missing: 0 */
#define TD_KEY_ARCH "model.arch"             /* a td_model_record's fields; none: no record */
#define TD_KEY_CLASSES "model.classes"       /* decimal */
#define TD_KEY_STEM "model.stem"             /* "cifar" or "imagenet" */
#define TD_KEY_IMAGE_SIZE "model.image_size" /* decimal; missing: 0 */
#define TD_KEY_WIDTHS "model.widths"         /* airbench94's: "64 256 256" */
#define TD_KEY_UNIT_HEAD "model.unit_head"   /* airbench94's; missing: not */

/* The version of files that td_checkpoint_save writes, and the newest that is read. A change that
 * today's readers would misread, or miss, gets the next number. */
#define TD_CHECKPOINT_FORMAT 1

enum { TD_GENERATOR_TEXT = 5200 }; /* bytes that the text of a generator takes at most */

/* A generator's whole state as text, and back: seed, next, has_cached, the bits of cached_normal,
 * then the 624 words as 8 hexadecimal digits each. false: not of that form. */
void td_generator_to_text(const td_generator *g, char text[TD_GENERATOR_TEXT]);
bool td_generator_from_text(const char *text, td_generator *g);

/* The order in memory as text, "2 0 1": the k-th number is the k-th parameter in memory, counted in
 * the order of registration. malloc'ed; NULL with td_last_error() when memory is short. */
char *td_order_to_text(const int *order, int count);
/* false: it is no order of any number of parameters. *same_count: it is one of `count`, and in
 * `order`. */
bool td_order_from_text(const char *text, int *order, int count, bool *same_count);

/* td_safetensors_open, which refuses a newer format (TD_E_FORMAT). */
td_status td_checkpoint_open(const char *path, td_safetensors **file);

/* td_checkpoint_load. averages: the model gets the averages of the weights where the file has them.
 */
td_status td_checkpoint_load_model(const char *path, const td_checkpoint *checkpoint,
                                   bool averages);

/* Fatal unless the program's own tensors are there and have names of theirs. */
void td_check_extra(const td_checkpoint *checkpoint, const char *function);

/* Formats into new memory; NULL with td_last_error() when it is short. */
char *td_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
