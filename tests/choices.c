#include "tests/choices.h"

#include "tensor/cpu/conv_choice.h"
#include "tensor/tune/store.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8, CHANNELS = 32, SIDE = 12 };

td_conv2d_desc choices_desc(void)
{
    return (td_conv2d_desc){ .dtype = TD_F32,
                             .n = BATCH,
                             .ic = CHANNELS,
                             .ih = SIDE,
                             .iw = SIDE,
                             .oc = CHANNELS,
                             .oh = SIDE,
                             .ow = SIDE,
                             .kh = 3,
                             .kw = 3,
                             .stride_h = 1,
                             .stride_w = 1,
                             .pad_h = 1,
                             .pad_w = 1,
                             .dil_h = 1,
                             .dil_w = 1,
                             .groups = 1,
                             .winograd = TD_WINOGRAD_BY_RULES };
}

static void make(bool ok)
{
    TD_REQUIRE(ok, TD_HERE, "choices: %s", td_last_error());
}

static uint64_t hash_of(td_tensor *t, uint64_t hash)
{
    size_t count = (size_t)td_numel(t);
    float *values = malloc(count * sizeof *values);
    make(values != NULL);
    td_read(t, values, TD_F32);
    const unsigned char *bytes = (const unsigned char *)values;
    for (size_t i = 0; i < count * sizeof *values; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    free(values);
    return hash;
}

static td_tensor *leaf(td_shape shape)
{
    td_tensor *t = td_zeros(shape, TD_F32, TD_CPU);
    make(t != NULL);
    td_normal_(t, 0.0, 1.0, td_default_generator());
    td_requires_grad(t, true);
    return t;
}

uint64_t choices_step(void)
{
    td_manual_seed(3);
    td_set_math((td_math){ .winograd = true });
    td_tensor *x = leaf(TD_SHAPE(BATCH, CHANNELS, SIDE, SIDE));
    td_tensor *w = leaf(TD_SHAPE(CHANNELS, CHANNELS, 3, 3));
    td_step_begin();
    td_tensor *y = td_conv2d(x, w, NULL, .padding = 1);
    uint64_t hash = hash_of(y, UINT64_C(0xcbf29ce484222325));
    td_backward(td_sum(td_mul(y, y)));
    hash = hash_of(td_grad(x), hash);
    hash = hash_of(td_grad(w), hash);
    td_step_end();
    td_free(w);
    td_free(x);
    td_set_math((td_math){ 0 });
    return hash;
}

static void owner_of(char owner[TD_CONV_NAME_MAX])
{
    td_conv2d_choice_owner(TD_CPU, owner);
}

const char *choices_path(const char *folder)
{
    static char path[1024];
    char owner[TD_CONV_NAME_MAX], name[TD_CONV_NAME_MAX];
    size_t length = 0;
    owner_of(owner);
    for (const char *at = owner; *at != '\0'; at++) {
        if (isalnum((unsigned char)*at) || *at == '_' || *at == '.') {
            name[length++] = *at;
        } else if (length > 0 && name[length - 1] != '-') {
            name[length++] = '-';
        }
    }
    snprintf(path, sizeof path, "%s/plans-%.*s.txt", folder, (int)length, name);
    return path;
}

void choices_force(const char *folder, const char *way)
{
    char owner[TD_CONV_NAME_MAX], key[TD_CONV_NAME_MAX];
    td_conv2d_desc d = choices_desc();
    owner_of(owner);
    td_plan_cache *cache = td_plan_cache_new(owner);
    make(cache != NULL);
    for (int pass = TD_CONV2D_FORWARD; pass <= TD_CONV2D_BACKWARD_WEIGHTS; pass++) {
        td_conv2d_choice_key(&d, (td_conv2d_pass)pass, key);
        make(td_plan_cache_put(cache, key, way, strlen(way)) == TD_OK);
    }
    make(td_plan_cache_save(cache, choices_path(folder)) == TD_OK);
    td_plan_cache_free(cache);
    setenv("TANDEM_CACHE", folder, 1);
}
