/* Optimizers that keep less than Adam's 8 bytes a parameter. Groups, state files, sharding,
 * captured steps: as for the optimizers of nn/optim/optim.h. Free them by td_optim_free. NULL with
 * td_last_error() when memory is short. */
#ifndef TD_NN_EXTRA_COMPACT_H
#define TD_NN_EXTRA_COMPACT_H

#include "nn/optim/optim.h"

TD_BEGIN_C

/* td_adam_compact(params, ...): Adam or AdamW, whose two averages are kept in 8 or 16 bits: 2.5 or
 * 4 bytes a parameter (tensor/kernels/packed.h). They are rounded stochastically, by numbers that
 * depend on the parameter, the element and the step alone: the same bits on any number of threads
 * and ranks, and in a resumed run. Parameters are f32. A checkpoint holds the averages as f32,
 * under td_adam's and td_adamw's names, so each of the three goes on from the others' files. */
typedef struct td_adam_compact_options {
    int begin_; /* for the library */
    td_params *params;
    int bits;            /* 8 or 16; 0: 8 */
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9 and 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
    bool decoupled; /* AdamW: weight_decay shrinks the weights directly */
} td_adam_compact_options;
td_optim *td_adam_compact_at(td_adam_compact_options options, td_site at);

/* td_adafactor(params, ...): torch.optim.Adafactor (Shazeer, Stern 2018). Of a matrix's squares it
 * keeps the averages of rows and of columns alone, 4 (O + I) bytes of a matrix O x I; filters
 * [O,I,KH,KW] are matrices O x I KH KW (PyTorch: many of KH x KW). nn/extra/adafactor.c has the
 * formula. A step is as large as lr next to the parameter's own size. On CPUs. Ranks that share the
 * optimizer add their parts of rows and columns, so the last bits depend on their number. */
typedef struct td_adafactor_options {
    int begin_;
    td_params *params;
    double lr;           /* the largest; 0: 1e-2 */
    double clip;         /* an update of a larger rms is scaled down to it; 0: 1 */
    double weight_decay; /* p *= 1 - lr weight_decay */
} td_adafactor_options;
td_optim *td_adafactor_at(td_adafactor_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_adam_compact(...)                                                                       \
    td_adam_compact_at((td_adam_compact_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_adafactor(...)                                                                          \
    td_adafactor_at((td_adafactor_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
