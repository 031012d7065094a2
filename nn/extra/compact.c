/* Adam with averages in fewer bits. The formula is Adam's; tensor/kernels/packed.h has the packing.
 */
#include "nn/extra/compact.h"
#include "nn/optim/optim_internal.h"
#include "nn/module.h"
#include "tensor/extend.h"

#define KIND(variable, NAME, FILL, PACKED)                                                         \
    static const td_optim_kind variable = { .name = NAME,                                          \
                                            .states = { "exp_avg", "exp_avg_sq" },                 \
                                            .fill = FILL,                                          \
                                            .run = td_adam_run,                                    \
                                            .packed = PACKED }
/* Files have the names of f32's. */
KIND(adam_16, "adam", td_adam_fill, TD_BF16);
KIND(adam_8, "adam", td_adam_fill, TD_U8);
KIND(adamw_16, "adamw", td_adamw_fill, TD_BF16);
KIND(adamw_8, "adamw", td_adamw_fill, TD_U8);

td_optim *td_adam_compact_at(td_adam_compact_options o, td_site at)
{
    TD_REQUIRE(o.bits == 0 || o.bits == 8 || o.bits == 16, at,
               "td_adam_compact: averages of %d bits: they have 8 or 16; td_adam keeps 32", o.bits);
    td_dtype dtype = o.params != NULL ? td_params_flat(o.params)->dtype : TD_F32;
    TD_REQUIRE(dtype == TD_F32, at,
               "td_adam_compact: the parameters are %s, and averages can be packed next to f32 "
               "alone: use td_adam",
               td_dtype_name(dtype));
    static const td_optim_kind *const kinds[2][2] = { { &adam_8, &adam_16 },
                                                      { &adamw_8, &adamw_16 } };
    return td_adam_of_kind(kinds[o.decoupled][o.bits == 16],
                           (td_adam_options){ .params = o.params,
                                              .lr = o.lr,
                                              .beta1 = o.beta1,
                                              .beta2 = o.beta2,
                                              .eps = o.eps,
                                              .weight_decay = o.weight_decay },
                           at);
}
