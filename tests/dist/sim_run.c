/* A small model trained by td_ddp, in processes or on the simulator. */
#include "tests/dist/sim_run.h"

#include "dist/ddp/extra.h"
#include "dist/shard/shard.h"
#include "nn/io/fingerprint.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tests/help/dist_procs.h"

static void failed(td_status status, const char *message, void *user)
{
    (void)status, (void)message;
    *(bool *)user = true;
}

void sim_train(int rank, sim_case *c)
{
    bool over = false;
    td_generator g;
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(13, 32), td_nn_relu(), td_nn_dropout(0.1),
                                      td_nn_linear(32, 32), td_nn_relu(), td_nn_linear(32, 3));
    net = td_ddp(net, .strategy = td_zero((td_shard)c->shard));
    if (net == NULL) {
        return;
    }
    td_ddp_on_error(net, failed, &over);
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-2);
    td_tensor *x = td_new(TD_SHAPE(16, 13), TD_F32, TD_CPU),
              *y = td_new(TD_SHAPE(16), TD_I64, TD_CPU);
    td_generator_seed(&g, 7 + (uint64_t)rank);
    td_normal_(x, 0, 1, &g);
    int64_t *labels = td_data_rw(y);
    for (int i = 0; i < 16; i++) {
        labels[i] = td_random_int(&g, 0, 3);
    }
    for (int step = 0; step < c->steps && !over; step++) {
        TD_STEP {
            td_zero_grad(optim);
            td_backward(td_cross_entropy(td_forward(net, x), y));
            if (!over) {
                td_optim_step(optim);
            }
        }
        if (over && rank == 0) {
            c->failed_step = step;
        }
    }
    td_fingerprints bits;
    if (!over && td_fingerprint(&bits, .model = net) == TD_OK) {
        if (rank == 0) {
            c->hash = bits.all;
        }
        td_fingerprints_free(&bits);
    }
    td_free(x);
    td_free(y);
    td_optim_free(optim);
    td_module_free(net);
}

int sim_rank(int rank, void *arg)
{
    sim_case *c = arg;
    if (td_dist_init() != TD_OK) {
        return 1;
    }
    sim_train(rank, c);
    td_dist_destroy();
    return 0;
}
