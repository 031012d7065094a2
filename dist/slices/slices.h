/* Tensor parallelism: the ranks of a group cut the weights of one model among themselves, and each
 * computes with its slices. Two kinds of layers are enough for a transformer's blocks (Shoeybi et
 * al. 2019, Megatron-LM):
 *
 *     COLUMN   a slice of the outputs: y is cut along its features. Backward: dx is a sum over
 *              the slices, so over the ranks
 *     ROW      a slice of the inputs, which a COLUMN layer has left cut: y is a sum over the
 *              slices, and the bias is added once
 *
 * A model's code is the same on any number of ranks: tensors between a COLUMN and a ROW layer are
 * smaller. A plan says which modules are cut, by path:
 *
 *     static const td_tp_rule plan[] = {
 *         { "transformer.h.*.attn.c_attn", .style = TD_TP_COLUMN, .parts = { 12, 12, 12 } },
 *         { "transformer.h.*.attn.c_proj", .style = TD_TP_ROW },
 *         { "transformer.h.*.mlp.c_fc", .style = TD_TP_COLUMN },
 *         { "transformer.h.*.mlp.c_proj", .style = TD_TP_ROW },
 *         { "transformer.wte", .style = TD_TP_VOCAB },
 *         { "lm_head", .style = TD_TP_VOCAB },
 *     };
 *     net = td_tensor_parallel(net, plan, 6, .mesh = mesh);
 *     net = td_ddp(net, .mesh = mesh);                        (if there is a dimension dp, too)
 *
 * Checkpoints have whole tensors, byte for byte those of one process: a file that was saved on any
 * number of ranks loads on any other. All ranks of the model save and load. */
#pragma once

#include "dist/dist.h"

TD_BEGIN_C

typedef enum td_tp_style {
    TD_TP_COLUMN, /* a Linear whose outputs are cut; or a Dropout between COLUMN and ROW layers,
                     which then draws the masks of the whole tensor */
    TD_TP_ROW,    /* a Linear whose inputs are cut */
    /* A table of words, cut along the words: an Embedding without padding_idx; or a head, whose
     * td_forward2 is the mean cross-entropy where a label of -100 does not count. The whole logits
     * do not exist for a loss; td_forward of the head gives them to all ranks. A head that has no
     * weight of its own uses the embedding's: it needs a rule, too. */
    TD_TP_VOCAB,
    /* A module around COLUMN and ROW layers, such as the chain of a transformer's blocks: inside, a
     * rank has a part of the rows (all dimensions but the last), except between a COLUMN and a ROW
     * layer. Norms, dropout and additions then need memory and time for these rows alone. Modules
     * inside must compute each row by itself. The rows must be divisible by the slices. */
    TD_TP_SEQUENCE,
} td_tp_style;

typedef struct td_tp_rule {
    const char *path; /* of modules, with *, ? and [] as in names of files (* matches dots, too) */
    td_tp_style style;
    /* COLUMN: outputs that are several things one after the other, each of which is cut by itself,
     * in any unit: .parts = { 12, 4, 4 } for the heads of queries, keys and values. Each number
     * must be a multiple of the slices. All 0: one part. */
    int64_t parts[3];
} td_tp_rule;

typedef struct td_tensor_parallel_options {
    int begin_; /* for the library */
    td_module *model;
    const td_tp_rule *rules;
    int count;
    td_group *group;      /* NULL: the world */
    struct td_mesh *mesh; /* instead of group (dist/comm/mesh.h): the ranks along tp. Free the mesh
                             after the model */
    /* Logical slices, a multiple of the number of ranks; 0: one for each rank. Each slice is
     * computed by itself, and sums over slices are taken in a fixed tree: with equal `slices` the
     * results have the same bits on 1, 2, 4, ... ranks. */
    int slices;
} td_tensor_parallel_options;

/* td_tensor_parallel(net, rules, count, ...) cuts the weights of the modules that the rules match,
 * and returns the same module. All ranks call td_tensor_parallel at the same place, with the same
 * rules and with models that were drawn from the same seed: a rank keeps its slice of the whole
 * tensor that one process would have drawn. Weights of td_defer_init are drawn here, one at a time.
 * Call it before td_pipeline, td_ddp and td_parameters, and give td_ddp the ranks that have equal
 * slices (its .mesh does that), td_evaluate those along rep and dp. A td_optim, clipping, averages
 * and checkpoints work as on one process.
 *
 * A rule that matches no module, two rules for one module, and sizes that the slices do not divide
 * are fatal errors. NULL with td_last_error() on all ranks, and the model is freed: memory is
 * short, or ranks have different parameters. A collective that fails in a step is a fatal error
 * that names the rank. */
td_module *td_tensor_parallel_at(td_tensor_parallel_options options, td_site at);
/* Collective: TD_E_MISMATCH on all ranks, with a parameter's name, if a parameter that is not cut
 * differs between the ranks of the slices by a single bit. For other models TD_OK. */
td_status td_tensor_parallel_check(td_module *net);

TD_END_C

#define td_tensor_parallel(...)                                                                    \
    td_tensor_parallel_at(                                                                         \
        (td_tensor_parallel_options){ TD_OPT3(model, rules, count, __VA_ARGS__) }, TD_HERE)
