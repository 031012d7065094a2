/* A dataset of one's own: points of a noisy wave, made when they are asked for. A small network
 * learns the wave. */
#include <tandem.h>
#include <tensor/extend.h> /* td_philox */

#include <math.h>
#include <stdlib.h>

typedef struct wave {
    td_dataset base; /* first, so that a td_dataset * of this dataset is also a wave * */
    double frequency;
    td_philox_key key;
} wave;

/* Sample i: x is a place in [-1, 1], and y the wave there. The noise depends on the epoch and the
 * sample alone, and nothing is written but x and y: several threads may fetch at the same time. */
static td_status wave_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                            uint64_t epoch, td_tensor *x, td_tensor *y)
{
    const wave *w = (const wave *)dataset;
    float *xs = td_data_rw(x), *ys = td_data_rw(y);
    for (int64_t i = 0; i < n; i++) {
        uint32_t word[4];
        td_philox(w->key, epoch, (uint64_t)index[i], word);
        double noise = 0.1 * ((double)word[0] * 0x1p-32 - 0.5);
        double place = 2.0 * (double)index[i] / (double)(dataset->length - 1) - 1.0;
        xs[i * x->stride[0]] = (float)place;
        ys[i * y->stride[0]] = (float)(sin(w->frequency * place) + noise);
    }
    return TD_OK;
}

/* What td_dataset_free calls. */
static void wave_free(td_dataset *dataset)
{
    free(dataset);
}

static const td_dataset_vtable wave_vtable = { "wave", wave_fetch, wave_free };

/* NULL with td_last_error(): no memory. */
static td_dataset *wave_new(int64_t length, double frequency)
{
    wave *w = malloc(sizeof *w);
    if (w == NULL) {
        td_fail(TD_E_NOMEM, "no memory for a dataset");
        return NULL;
    }
    *w = (wave){
        .base = { .vtable = &wave_vtable,
                  .length = length,
                  .sample_shape = TD_SHAPE(1),
                  .target_shape = TD_SHAPE(1) }, /* of y: numbers. For a class set .classes */
        .frequency = frequency,
        .key = { 1, 2 },
    };
    return &w->base;
}

int main(void)
{
    td_manual_seed(0);
    td_dataset *train = wave_new(512, 6.0);
    td_module *net = td_nn_sequential(td_nn_linear(1, 32), td_nn_gelu(), td_nn_linear(32, 32),
                                      td_nn_gelu(), td_nn_linear(32, 1));
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-2);
    td_loader *loader = td_loader_open(train, .batch_size = 64, .shuffle = true, .workers = 2);
    if (optim == NULL || loader == NULL) {
        td_die();
    }
    for (int epoch = 0; epoch < 60; epoch++) {
        double sum = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *loss = td_mse_loss(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                sum += td_item(loss) * (double)batch.size;
            }
        }
        if (td_loader_status(loader) != TD_OK) {
            td_die();
        }
        if (epoch % 20 == 19) {
            printf("epoch %d: loss %.4f\n", epoch + 1, sum / (double)train->length);
        }
    }
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(train);
    return 0;
}
