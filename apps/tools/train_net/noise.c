/* A dataset of random images, for trials without files. */
#include "apps/tools/train_net/classify.h"

#include <stdlib.h>

/* Every sample is read from one table, from a place of its own: making numbers must cost nothing.
 */
enum { TABLE = 65536, STRIDE = 7919 };

typedef struct noise {
    td_dataset base;
    float table[TABLE];
} noise;

static void fill(const noise *n, int64_t sample, float *out, const int64_t *stride)
{
    int64_t size = n->base.sample_shape.dim[1];
    uint64_t at = (uint64_t)sample * STRIDE;
    for (int64_t h = 0; h < size; h++) {
        for (int64_t w = 0; w < size; w++) {
            for (int64_t c = 0; c < 3; c++) {
                out[c * stride[1] + h * stride[2] + w * stride[3]] = n->table[at++ % TABLE];
            }
        }
    }
}

static td_status fetch(const td_dataset *dataset, const int64_t *index, int64_t n, uint64_t epoch,
                       td_tensor *x, td_tensor *y)
{
    (void)epoch;
    float *out = td_data_rw(x);
    int64_t *label = td_data_rw(y);
    for (int64_t i = 0; i < n; i++) {
        fill((const noise *)dataset, index[i], out + i * x->stride[0], x->stride);
        label[i * y->stride[0]] = index[i] % dataset->classes;
    }
    return TD_OK;
}

static void free_noise(td_dataset *dataset)
{
    free(dataset);
}

static const td_dataset_vtable vtable = { "noise", fetch, free_noise };

td_status noise_open(int64_t length, int64_t size, int classes, td_dataset **dataset)
{
    noise *n = calloc(1, sizeof *n);
    TD_CHECK(n != NULL, TD_E_NOMEM, "no memory for a table of noise");
    n->base = (td_dataset){ .vtable = &vtable,
                            .length = length,
                            .sample_shape = TD_SHAPE(3, size, size),
                            .dtype = TD_F32,
                            .layout = TD_IMAGE,
                            .classes = classes,
                            .synthetic = true };
    for (int i = 0; i < TABLE; i++) {
        /* The sum of eight bytes, to mean 0 and variance 1. */
        uint32_t word[4];
        td_philox((td_philox_key){ 0, 0x6e6f697365 /* "noise" in ASCII */ }, (uint64_t)i, 0, word);
        int sum = 0;
        for (int k = 0; k < 8; k++) {
            sum += (int)(word[k / 4] >> 8 * (k % 4) & 255);
        }
        n->table[i] = (float)(sum - 1020) / 209.0f;
    }
    *dataset = &n->base;
    return TD_OK;
}
