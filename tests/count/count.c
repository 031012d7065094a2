/* The list of what has been launched, and the vendors' libraries, which are counted too. */
#include "tests/count/count.h"

#include "tensor/cuda/products.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MOST_KINDS = 256 };

static struct kind {
    char name[128];
    int launches;
    double bytes;
} kinds[MOST_KINDS];
static int kind_count;
static bool counting;
static count_totals totals;

void count_begin(void)
{
    kind_count = 0;
    totals = (count_totals){ .launches = 0 };
    counting = true;
}

void count_launch(const char *name, double bytes, int64_t scalars)
{
    if (!counting) {
        return;
    }
    int i = 0;
    while (i < kind_count && strcmp(kinds[i].name, name) != 0) {
        i++;
    }
    if (i == kind_count && kind_count < MOST_KINDS) {
        kinds[kind_count++] = (struct kind){ .launches = 0 };
        snprintf(kinds[i].name, sizeof kinds[i].name, "%s", name);
    }
    totals.launches++;
    if (i == kind_count || bytes < 0) {
        snprintf(totals.unknown, sizeof totals.unknown, "%s", name);
        return;
    }
    kinds[i].launches++;
    kinds[i].bytes += bytes;
    totals.bytes += bytes;
    if (scalars > totals.most_scalars) {
        totals.most_scalars = scalars;
        snprintf(totals.scalar, sizeof totals.scalar, "%s", name);
    }
}

void count_wait(void)
{
    totals.waits += counting;
}

count_totals count_end(void)
{
    counting = false;
    return totals;
}

void count_print(void)
{
    for (int i = 0; i < kind_count; i++) {
        printf("# %4d  %9.2f MB  %s\n", kinds[i].launches, kinds[i].bytes / 1e6, kinds[i].name);
    }
}

/* ---- the vendors' libraries ---- */

bool __wrap_td_cuda_vendor_conv(td_device device, const td_cuda_conv *conv, void *x, void *w,
                                void *y, const void *bias);
bool __wrap_td_cuda_vendor_matmul(td_device device, const td_cuda_product *product, void *c,
                                  const void *add, const void *a, const void *b, const void *bias);

bool __wrap_td_cuda_vendor_conv(td_device device, const td_cuda_conv *c, void *x, void *w, void *y,
                                const void *bias)
{
    (void)device, (void)x, (void)w, (void)y, (void)bias;
    static const char *const names[] = { "cuDNN forward", "cuDNN backward data",
                                         "cuDNN backward weights" };
    int64_t sizes[] = { c->n * c->oc * c->oh * c->ow, c->n * c->ic * c->ih * c->iw,
                        c->oc * (c->ic / c->groups) * c->kh * c->kw }; /* y, x, w; by pass */
    int64_t elements = sizes[0] + sizes[1] + sizes[2] + (c->accumulate ? sizes[c->pass] : 0);
    count_launch(names[c->pass], (double)elements * (double)td_dtype_size(c->dtype), 0);
    return true;
}

bool __wrap_td_cuda_vendor_matmul(td_device device, const td_cuda_product *p, void *c,
                                  const void *add, const void *a, const void *b, const void *bias)
{
    (void)device, (void)c, (void)add, (void)a, (void)b, (void)bias;
    int64_t factors = p->batch * (p->m * p->k + p->k * p->n), results = p->batch * p->m * p->n;
    count_launch("cuBLASLt",
                 (double)factors * (double)td_dtype_size(p->ab_dtype) +
                     (double)(results * (1 + p->adds)) * (double)td_dtype_size(p->c_dtype),
                 0);
    return true;
}
