/* A pass over a test set, which may be stopped, and says how far it is. */
#ifndef APPS_TOOLS_EVALUATE_H
#define APPS_TOOLS_EVALUATE_H

#include "tandem.h"

typedef struct evaluation {
    int64_t correct, correct_k, count;
    double loss;  /* mean over the samples */
    bool stopped; /* by evaluate_options.stop: the figures are those of a part */
} evaluation;

/* The loader of a test set whose pictures lie on a GPU, kept from one evaluation to the next, so
 * that they are sent once. Zero at first; evaluate_forget closes it. */
typedef struct evaluate_kept {
    td_loader *loader;
    td_generator generator; /* the loader's */
} evaluate_kept;

void evaluate_forget(evaluate_kept *kept);

typedef struct evaluate_options {
    int64_t batch_size;
    int workers;
    bool streamed;       /* td_loader_options' */
    evaluate_kept *kept; /* NULL: nothing is kept. Always with the same dataset and batch size */
    int64_t top_k;       /* 0: not counted */
    /* NULL, or is told after each batch (from 1) of this rank what there is so far. */
    void (*batch_done)(const evaluation *so_far, int64_t batch, int64_t batches, void *user);
    /* NULL, or asked before each batch whether to end; if one process is, all end there. */
    bool (*stop)(void *user);
    void *user;
} evaluate_options;

/* In evaluation mode, without gradients; with several processes each takes its part, and all get
 * the figures of the whole, with rank 0's running statistics. The net is left in training mode. It
 * draws nothing from the default generator, so training goes on as if it had not been. */
td_status evaluate(td_module *net, const td_dataset *dataset, const evaluate_options *options,
                   evaluation *result);

/* TD_OK, or the error that ends a run whose loss is NaN or infinite. epoch and step from 1; lr is
 * what the program calls its learning rate. */
td_status check_loss(double loss, int64_t epoch, int64_t step, const char *lr);

#endif
