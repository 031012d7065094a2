/* A rank of a DDP run on a device, for tests/dist/test_dist_worker_ddp.sh and, on a GPU,
 * tests/gpu/nccl.sh:
 *
 *     worker_ddp DEVICE equal      five steps equal one process's on the joined batch; all ranks'
 * weights are equal to the bit; SyncBatchNorm's statistics are the whole batch's worker_ddp DEVICE
 * die        rank 1 kills itself in a step; the others must be told
 *
 * Every rank says in one line what it has found, and ends with 0 if it is as it should be. */
#include "dist/ddp/codec.h"
#include "dist/ddp/extra.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "nn/module.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 6, STEPS = 5, SIDE = 8, CLASSES = 5 };

static td_module *new_net(td_device device, int norm)
{
    td_manual_seed(11);
    td_module *net = norm ? td_nn_sequential(td_nn_conv2d(3, 8, .kernel = 3, .padding = 1),
                                             td_nn_batch_norm2d(8, .no_weight = norm == 2),
                                             td_nn_relu(), td_nn_global_avg_pool2d(),
                                             td_nn_flatten(), td_nn_linear(8, CLASSES))
                          : td_nn_sequential(td_nn_conv2d(3, 8, .kernel = 3, .padding = 1),
                                             td_nn_relu(), td_nn_max_pool2d(2), td_nn_flatten(),
                                             td_nn_linear(8 * SIDE * SIDE / 4, CLASSES));
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        fprintf(stderr, "%s\n", td_last_error());
        exit(2);
    }
    return net;
}

/* Samples first .. first + n - 1 of a step's batch: always the same numbers. */
static void make_batch(int step, int first, int n, td_device device, td_tensor **x, td_tensor **y)
{
    int64_t pixels = 3 * SIDE * SIDE;
    float *values = malloc((size_t)(n * pixels) * sizeof *values);
    int64_t labels[64];
    for (int i = 0; i < n; i++) {
        labels[i] = (step + 3 * (first + i)) % CLASSES;
        for (int64_t k = 0; k < pixels; k++) {
            uint32_t word[4];
            td_philox((td_philox_key){ 5, (uint64_t)step }, (uint64_t)(first + i), (uint64_t)k,
                      word);
            values[i * pixels + k] = (float)word[0] / 0x1p31f - 1.0f;
        }
    }
    *x = td_new_layout(TD_SHAPE(n, 3, SIDE, SIDE), TD_F32, TD_IMAGE, device);
    *y = td_new(TD_SHAPE(n), TD_I64, device);
    td_write(*x, values, TD_F32);
    td_write(*y, labels, TD_I64);
    free(values);
}

static void train_step(td_module *net, td_optim *optim, int step, int first, int n)
{
    td_tensor *x, *y;
    make_batch(step, first, n, net->device, &x, &y);
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(net, x), y);
    td_zero_grad(optim);
    td_backward(loss);
    td_optim_step(optim);
    td_step_end();
    td_free(x);
    td_free(y);
}

static td_optim *new_optim(td_module *net)
{
    return td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
}

/* All parameters and buffers as doubles, one after the other. */
static int64_t read_state(td_module *net, double *values, int64_t most)
{
    td_state_list list = td_module_state(net);
    int64_t count = 0;
    for (int i = 0; i < list.count; i++) {
        int64_t n = td_numel(list.items[i].tensor);
        if (count + n > most) {
            fprintf(stderr, "the model is larger than this test thinks\n");
            exit(2);
        }
        td_read(list.items[i].tensor, values + count, TD_F64);
        count += n;
    }
    td_state_list_free(&list);
    return count;
}

/* Whether all ranks have the same values: least holds this rank's, most their negatives. */
static bool all_equal(double *least, double *most, int64_t count)
{
    td_tensor *low = td_borrow(least, TD_SHAPE(count), TD_F64, TD_CPU);
    td_tensor *high = td_borrow(most, TD_SHAPE(count), TD_F64, TD_CPU);
    bool compared = td_all_reduce(NULL, low, TD_MIN, NULL) == TD_OK &&
                    td_all_reduce(NULL, high, TD_MIN, NULL) == TD_OK;
    for (int64_t i = 0; i < count; i++) {
        compared = compared && least[i] == -most[i];
    }
    td_free(low);
    td_free(high);
    return compared;
}

/* The largest difference between what DDP and one process have learnt; negative: the ranks differ.
 */
static double difference(td_device device, int norm)
{
    enum { MOST = 4000 };
    static double together[MOST], alone[MOST], least[MOST], most[MOST];
    int rank = td_dist_rank(), size = td_dist_world_size();
    td_module *net = new_net(device, norm);
    if (norm != 0) {
        net = td_convert_sync_batch_norm(net, NULL);
    }
    net = td_ddp(net, .bucket_cap_mb = 0.001, .no_broadcast_buffers = true);
    td_module *whole = new_net(device, norm);
    if (net == NULL) {
        fprintf(stderr, "%s\n", td_last_error());
        exit(2);
    }
    td_optim *optim = new_optim(net), *optim_alone = new_optim(whole);
    for (int step = 0; step < STEPS; step++) {
        train_step(net, optim, step, rank * BATCH, BATCH);
        train_step(whole, optim_alone, step, 0, size * BATCH);
    }
    int64_t count = read_state(net, together, MOST);
    read_state(whole, alone, MOST);
    memcpy(least, together, sizeof least);
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(together[i] - alone[i]));
        most[i] = -together[i];
    }
    bool compared = all_equal(least, most, count);
    td_optim_free(optim);
    td_optim_free(optim_alone);
    td_module_free(net);
    td_module_free(whole);
    return compared ? largest : -1.0;
}

/* The largest difference between two ways of td_ddp; negative: the ranks differ. */
static double pair_difference(const td_device devices[2], const td_ddp_options options[2])
{
    enum { MOST = 4000 };
    static double state[2][MOST], least[MOST], most[MOST];
    int64_t count = 0;
    for (int i = 0; i < 2; i++) {
        td_ddp_options with_net = options[i];
        with_net.model = new_net(devices[i], 0);
        with_net.bucket_cap_mb = 0.001;
        td_module *net = td_ddp_at(with_net, TD_HERE);
        if (net == NULL) {
            fprintf(stderr, "%s\n", td_last_error());
            exit(2);
        }
        td_optim *optim = new_optim(net);
        for (int step = 0; step < STEPS; step++) {
            train_step(net, optim, step, td_dist_rank() * BATCH, BATCH);
        }
        if (td_unshard(net) != TD_OK) {
            fprintf(stderr, "%s\n", td_last_error());
            exit(2);
        }
        count = read_state(net, state[i], MOST);
        td_optim_free(optim);
        td_module_free(net);
    }
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(state[0][i] - state[1][i]));
        least[i] = state[0][i];
        most[i] = -state[0][i];
    }
    return all_equal(least, most, count) ? largest : -1.0;
}

/* PowerSGD on the device against PowerSGD on the CPU, once it compresses. */
static double powersgd_difference(td_device device)
{
    td_ddp_options o = { .codec = td_powersgd(.start = 2, .rank = 2) };
    return pair_difference((td_device[]){ device, TD_CPU }, (td_ddp_options[]){ o, o });
}

static bool is_linear(const td_module *m, const char *path, void *user)
{
    (void)path, (void)user;
    return strcmp(m->type->name, "Linear") == 0;
}

static double shard_difference(td_device device)
{
    double largest = 0.0;
    for (int way = TD_SHARD_OPTIMIZER; way <= TD_SHARD_PARAMETERS && largest >= 0.0; way++) {
        double d = pair_difference(
            (td_device[]){ device, device },
            (td_ddp_options[]){ { .strategy = td_zero((td_shard)way, .unit = is_linear) },
                                { .strategy = NULL } });
        largest = d < 0.0 ? d : fmax(largest, d);
    }
    return largest;
}

static int check_equal(td_device device)
{
    static const char *const names[] = { "DDP", "with SyncBatchNorm",
                                         "with SyncBatchNorm without weight" };
    int failures = 0;
    for (int norm = 0; norm < 3; norm++) {
        double d = difference(device, norm);
        bool right = d >= 0.0 && d <= 1e-5;
        printf("rank %d of %d on %s: %s: %s %.2g\n", td_dist_rank(), td_dist_world_size(),
               td_device_name(device), names[norm],
               d < 0.0 ? "the ranks differ" : "the joined batch within", d);
        failures += !right;
    }
    double d = powersgd_difference(device);
    printf("rank %d of %d on %s: PowerSGD: %s %.2g\n", td_dist_rank(), td_dist_world_size(),
           td_device_name(device), d < 0.0 ? "the ranks differ" : "the CPU's within", d);
    failures += !(d >= 0.0 && d <= 1e-4);
    d = shard_difference(device);
    printf("rank %d of %d on %s: sharded: %s %.2g\n", td_dist_rank(), td_dist_world_size(),
           td_device_name(device),
           d < 0.0 ? "the ranks differ" : "the weights without sharding within", d);
    return failures + (d != 0.0);
}

static void on_error(td_status status, const char *message, void *user)
{
    (void)status;
    printf("rank %d was told: %s\n", td_dist_rank(), message);
    fflush(stdout);
    *(bool *)user = true;
}

static int check_death(td_device device)
{
    bool told = false;
    td_module *net = td_ddp(new_net(device, false));
    if (net == NULL) {
        return 2;
    }
    td_ddp_on_error(net, on_error, &told);
    td_optim *optim = new_optim(net);
    for (int step = 0; step < 1000 && !told; step++) {
        if (step == STEPS && td_dist_rank() == 1) {
            (void)raise(SIGKILL);
        }
        train_step(net, optim, step, 0, BATCH);
    }
    td_optim_free(optim);
    td_module_free(net);
    return told ? 0 : 1;
}

int main(int argc, char **argv)
{
    td_device device;
    if (argc != 3 || td_device_parse(argv[1], &device) != TD_OK) {
        fprintf(stderr, "usage: worker_ddp DEVICE equal|die (%s)\n",
                argc == 3 ? td_last_error() : "");
        return 64;
    }
    /* $MEET names a file where the ranks meet: a launcher would end the others of a rank that dies.
     */
    td_dist_options options = { .timeout = 30 };
    if (getenv("MEET") != NULL && getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL) {
        options.init_method = getenv("MEET");
        options.rank = atoi(getenv("RANK"));
        options.world_size = atoi(getenv("WORLD_SIZE"));
        unsetenv("RANK"); /* what it is by the options, it is not by the environment */
        unsetenv("WORLD_SIZE");
    }
    if (td_dist_init_at(options, TD_HERE) != TD_OK) {
        fprintf(stderr, "%s\n", td_last_error());
        return 2;
    }
    int code = strcmp(argv[2], "die") == 0 ? check_death(device) : check_equal(device);
    td_dist_destroy();
    return code;
}
