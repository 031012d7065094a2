/* What a checkpoint holds, as one list of records: saving writes the list, loading compares it with
 * a file and then takes the values. Users do not include this.
 *
 * A run that is resumed makes the same bits as one that was never interrupted, because the list has
 * all that the next steps depend on:
 *
 *     the model's parameters and buffers     what forward computes with
 *     the optimizer's state, steps, lr       what the update computes with
 *     gradients in an accumulation           what the next backward adds to
 *     averages of weights, the loss scaler   the same of these (tensor/part.h)
 *     the loader's epoch, place and order    which samples come next
 *     the generator, each Dropout's seed     what is drawn
 *     the parameters' order in memory        floating-point sums depend on their order: gradients
 *                                            are added over ranks, and norms over parameters, in
 *                                            the order of memory
 *
 * Tensors are the file's tensors; numbers are text in its metadata. */
#pragma once

#include "nn/extra/inspect.h"
#include "nn/internal.h"
#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"
#include "nn/shared/slices.h"
#include "tensor/part.h"

/* Names in a file. Of tensors: "optimizer.<path>.<what>", "ema.<path>", "extra.<name>". Of
 * metadata: */
#define TD_KEY_OPTIMIZER "optimizer."             /* what all of an optimizer's begin with */
#define TD_KEY_OPTIMIZER_KIND "optimizer.kind"    /* "adam" */
#define TD_KEY_OPTIMIZER_LR "optimizer.lr"        /* decimal */
#define TD_KEY_OPTIMIZER_STEP "optimizer.%s.step" /* of each parameter; missing: 0 */
#define TD_KEY_EMA "ema."                         /* what all of an average's begin with */
#define TD_KEY_EMA_UPDATES "ema.updates"          /* decimal */
#define TD_KEY_EXTRA "extra."                     /* what tensors of the program's own begin with */
#define TD_KEY_GRADIENT "gradient."               /* what gradients that wait for more begin with */
#define TD_KEY_OWN_GRADIENT "extra.gradient."     /* those that each rank has of its own */
#define TD_KEY_RANDOM "random.default"            /* seed, next, has_cached, bits, 624 words */
#define TD_KEY_RANDOM_ORDER "random.order" /* what was drawn from it last; missing: unknown */
#define TD_KEY_DROPOUT "dropout.%s"        /* of each Dropout: "seed calls" */
#define TD_KEY_ORDER "parameters.order"    /* in memory; missing: as registered */

#define TD_KEY_FORMAT "tandem.format"        /* decimal; missing: 0 */
#define TD_KEY_ARCH "model.arch"             /* a td_model_record's fields; none: no record */
#define TD_KEY_CLASSES "model.classes"       /* decimal */
#define TD_KEY_STEM "model.stem"             /* "cifar" or "imagenet" */
#define TD_KEY_IMAGE_SIZE "model.image_size" /* decimal; missing: 0 */

/* The version of files that td_checkpoint_save writes, and the newest that is read. A change that
 * today's readers would misread, or miss, gets the next number. */
#define TD_CHECKPOINT_FORMAT 1

extern const td_text_kind td_text_rate;    /* double */
extern const td_text_kind td_text_dropout; /* td_dropout_place */

typedef struct td_text_record {
    char *key;
    char *text; /* of the list while saving, of the file while loading; NULL: there is none */
    const td_text_kind *kind; /* while loading */
    void *of;
} td_text_record;

/* The order of parameters in memory: "2 0 1", the k-th number is the k-th in memory. NULL when
 * memory is short. */
char *td_order_text(const td_params *params);
/* false: the text is no order. *order: to be freed, or NULL if the present order stays. */
bool td_order_read(const char *text, const td_params *params, int **order);

typedef enum td_tensor_part {
    TD_PART_MODEL,
    TD_PART_EMPTY,    /* loading fills the tensor with zeros */
    TD_PART_GRADIENT, /* of a parameter, in the middle of an accumulation */
    TD_PART_OTHER
} td_tensor_part;
typedef struct td_tensor_record {
    char *name;
    td_tensor *tensor;
    bool view;         /* the tensor was made for the list */
    td_tensor *window; /* not NULL: this rank's window of what ranks share, or packed state, */
    int param;         /* in the form of `tensor`, which is this parameter; or the gradient's */
    int stage;         /* which of a pipeline's ranks has it */
    int owner;         /* the rank that has the tensor, if there is no window */
    int mean_of;       /* not 0: loading adds this share to the tensor, from owner 0 on */
    td_tensor_part part;
    const td_cut *cut;                /* not NULL: ranks have slices of what the file has whole */
    const td_safetensors_entry *from; /* while loading */
} td_tensor_record;

/* The first few differences of one sort, and how many there are. */
typedef struct td_difference {
    char text[560];
    int count;
} td_difference;

typedef struct td_records {
    td_part_list parts; /* first: the list as parts see it */
    const td_checkpoint_options *options;
    const td_staging *stages;   /* of the model; NULL: all its parameters are here */
    const td_slicing *slicing;  /* of the model; NULL: no rank has only slices of tensors */
    const td_safetensors *file; /* NULL: saving */
    td_tensor_record *tensors;
    int tensor_count;
    td_text_record *texts;
    int text_count;
    bool averages; /* load those of the weights where the file has them */
    bool *used;    /* of the file's tensors: a record is loaded from it */
    int *order;    /* of parameters in memory; NULL: it stays */
    td_difference missing, unexpected, unlike; /* of the file */
    void *data;                                /* of the tensor that is read */
    bool failed;                               /* memory was short */
} td_records;

/* Fails unless the options are complete; function: the caller's name. */
void td_records_require(const td_checkpoint_options *c, const char *function, td_site at);
/* The model's parameters if ranks share what is saved or loaded of them; NULL: they do not. */
const td_params *td_records_shared(const td_checkpoint_options *c);
/* The parameters of which several ranks have state, so that all of them save; NULL: one rank has
 * all. */
const td_params *td_records_together(const td_checkpoint_options *c);
/* TD_E_UNSUPPORTED: gradients wait for more that no rank has whole. */
td_status td_records_check_gradients(const td_checkpoint_options *c);
/* The ranks that train the model; NULL: this one alone. */
const td_params_peers *td_records_ranks(const td_checkpoint_options *c);
/* TD_OK if that is the status on all ranks; peers, slicing NULL: there are no others. _all: of all
 * stages of the model, too. */
td_status td_records_agree(const td_params_peers *peers, const td_slicing *slicing,
                           td_status status);
td_status td_records_agree_all(const td_module *model, const td_params_peers *peers,
                               td_status status);
/* The number of ranks of which the file has tensors of their own ("1/4." behind the prefix; in
 * files of earlier versions "1."); 0: none. And the name of rank's tensor, to be freed. */
int td_records_in_file(const td_safetensors *file, const char *prefix);
char *td_records_own_name(const td_records *l, const char *prefix, int rank, int ranks,
                          const char *name);
/* The shape of a record in the file. */
td_shape td_records_shape(const td_records *l, const td_tensor_record *r);

/* Adds all records of list->options. */
void td_records_list(td_records *list);
/* A part's td_part_list.tensor of all parameters' places in a flat tensor, of which each rank has a
 * window if it has one of the parameters' values; and of a tensor that is kept for a buffer. */
void td_records_flat(td_part_list *list, const char *prefix, const td_params *params,
                     td_tensor *flat);
void td_records_buffer(td_part_list *list, const char *prefix, const char *name,
                       const td_tensor *buffer, td_tensor *kept);
/* The options' parts, NULL where there is none. */
enum { TD_CHECKPOINT_PARTS = 4 };
td_checkpoint_part *td_records_part(const td_checkpoint_options *c, int i);
void td_records_free(td_records *list);

/* Notes a difference. */
void td_differ(td_difference *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* td_safetensors_open, which refuses a newer format (TD_E_FORMAT). */
td_status td_checkpoint_open(const char *path, td_safetensors **file);

/* td_checkpoint_load. averages: the model gets the averages of the weights where the file has them.
 */
td_status td_checkpoint_load_model(const td_checkpoint_options *options, bool averages, td_site at);
