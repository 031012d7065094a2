/* Two processes train one model by DistributedDataParallel: each takes half of the samples, and
 * gradients are averaged. */
#include <tandem.h>

/* What td_evaluate measures here: the loss, and labels that are among the two largest logits. */
static td_tensor *top2(td_module *net, const td_batch *batch, td_tensor **sums, void *user)
{
    (void)user;
    td_tensor *logits = td_forward(net, batch->x);
    sums[0] = td_count_top(logits, batch->y, 2);
    return td_cross_entropy(logits, batch->y);
}

static int rank_main(int local_rank, void *arg)
{
    (void)local_rank, (void)arg;
    td_dataset *data;
    if (td_dist_init() != TD_OK || td_synthetic_images(1000, 1, &data) != TD_OK) {
        td_die();
    }
    td_module *net = td_nn_sequential(td_nn_conv2d(3, 16, .kernel = 3, .stride = 2), td_nn_relu(),
                                      td_nn_max_pool2d(2), td_nn_flatten(),
                                      td_nn_linear(16 * 7 * 7, data->classes));
    net = td_ddp(net); /* rank 0's weights go to all */
    td_optim *optim = td_adam(td_parameters(net), .lr = 3e-3);
    td_sampler *sampler = td_distributed_sampler(.shuffle = true);
    td_loader *loader = td_loader_open(data, .batch_size = 16, .sampler = sampler);
    if (optim == NULL || loader == NULL) {
        td_die();
    }
    for (int epoch = 0; epoch < 10; epoch++) {
        double sum = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                sum += td_item(loss);
            }
        }
        sum = td_all_reduce_mean(sum / (double)td_loader_batches(loader));
        td_printf_rank0("epoch %d: loss %.4f\n", epoch + 1, sum);
    }
    td_loader_close(loader);
    loader = td_loader_open(data, .batch_size = 16,
                            .sampler = td_distributed_sampler(.no_padding = true));
    td_evaluation test = td_evaluate(net, loader, .measure = top2);
    if (test.status != TD_OK) {
        td_die();
    }
    td_printf_rank0("%g of %g right\n", test.sums[0], (double)test.seen);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(data);
    td_dist_destroy();
    return 0;
}

int main(void)
{
    if (td_spawn(rank_main, NULL, 2) != TD_OK) {
        td_die();
    }
    return 0;
}
