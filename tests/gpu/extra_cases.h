/* The cases of tests/gpu/extra.def. */
#pragma once

#include "autograd/fused.h"
#include "tests/autograd/ops_cases.h"

#define EXTRA(op, name, inputs, ...)                                                               \
    static td_tensor *extra_##op##_##name(td_tensor *const *in, void *user)                        \
    {                                                                                              \
        (void)user;                                                                                \
        return __VA_ARGS__;                                                                        \
    }
#include "tests/gpu/extra.def"
#undef EXTRA

#define EXTRA(op, name, inputs, ...) { #op, #op "/gpu_" #name, inputs, extra_##op##_##name },
static const ops_case extras[] = {
#include "tests/gpu/extra.def"
};
#undef EXTRA
enum { EXTRAS = sizeof extras / sizeof extras[0] };
