/* Lesson 18: what td_ddp does, by hand: hooks on gradients, all-reduce, buckets.
 *
 * The same network is trained with a message for each gradient, with buckets of at least KIB, and
 * with td_ddp. The weights get the same bits. docs/tutorial/18-ddp-by-hand.md explains the ideas.
 */
#include <autograd/hooks.h>
#include <nn/io/fingerprint.h>
#include <nn/module.h>
#include <tandem.h>
#include <tensor/extend.h>

enum { MOST = 8, EPOCHS = 5 }; /* MOST: parameters, and processes */

static int nprocs = 2, kib = 16; /* the options */
static const td_option options[] = {
    { "PROCESSES", .number = &nprocs, .least = 1, .most = MOST },
    { "KIB", .number = &kib, .least = 1, .most = 1 << 20 },
    { 0 },
};

/* What travels as one message: one gradient, or a bucket, which has several. */
typedef struct message {
    td_tensor *gradients;
    int parameters, pending; /* pending: gradients that this backward has not computed yet */
    td_work *work;
} message;

typedef struct by_hand by_hand;
typedef struct watched { /* what a hook knows of its parameter */
    by_hand *ddp;
    const char *name;
    message *m;
} watched;
struct by_hand {
    message messages[MOST];
    watched params[MOST];
    int count, sent; /* messages, and those of this backward that are on their way */
    bool print;      /* the first backward of rank 0 */
};

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

/* Runs in the middle of td_backward, when a gradient is complete. A thread of the group carries out
 * the all-reduce, while backward goes on to the layer before. */
static void on_ready(td_tensor *leaf, void *user)
{
    const watched *w = user;
    (void)leaf;
    if (w->ddp->print) {
        printf("  %-8s is ready\n", w->name);
    }
    if (--w->m->pending == 0) {
        must(td_all_reduce(NULL, w->m->gradients, TD_AVERAGE, &w->m->work) == TD_OK);
        w->ddp->sent++;
        if (w->ddp->print) {
            printf("%30s %d: %5lld bytes\n", "message", w->ddp->sent,
                   (long long)td_numel(w->m->gradients) * 4);
        }
    }
}

/* Runs at the end of td_backward. Afterwards all gradients are means over the ranks. */
static void on_end(void *user)
{
    by_hand *ddp = user;
    for (message *m = ddp->messages; m < ddp->messages + ddp->count; m++) {
        must(td_work_wait(m->work, 0) == TD_OK);
        m->pending = m->parameters;
    }
    ddp->sent = 0;
    ddp->print = false;
}

/* All gradients are in one array, those of the last layer at its end, where backward begins. So a
 * bucket is filled from the end on, and is one stretch of the array. Returns the end hook. */
static int open_by_hand(by_hand *ddp, td_params *params, int64_t least_bytes)
{
    const td_tensor *all = td_params_flat_grad(params);
    int64_t end = td_numel(all);
    for (int i = td_params_count(params) - 1, before = i; i >= 0; i--) {
        const td_param *p = td_params_get(params, i);
        message *m = &ddp->messages[ddp->count];
        ddp->params[i] = (watched){ ddp, p->name, m };
        must(td_on_grad_ready(p->tensor, on_ready, &ddp->params[i]) > 0 &&
             td_broadcast(NULL, p->tensor, 0, NULL) == TD_OK); /* all begin with rank 0's values */
        if ((end - p->begin) * 4 >= least_bytes || i == 0) {
            m->gradients = td_slice_of_storage(all, all->offset + p->begin,
                                               TD_SHAPE(end - p->begin), (int64_t[]){ 1 });
            must(m->gradients != NULL);
            m->parameters = m->pending = before - i + 1;
            end = p->begin, before = i - 1;
            ddp->count++;
        }
    }
    return td_on_backward_end(on_end, ddp);
}

/* Trains with messages of at least least_bytes (0: of one gradient; -1: with td_ddp), and returns
 * the fingerprint of the weights. */
static uint64_t train(const char *name, int64_t least_bytes)
{
    td_dataset *train_set, *test_set;
    must(td_wine_split("data/wine.csv", 0.2, 42, &train_set, &test_set, NULL) == TD_OK);
    td_manual_seed((uint64_t)td_dist_rank()); /* each rank begins with weights of its own */
    td_module *net =
        td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 64), td_nn_relu(),
                         td_nn_linear(64, 32), td_nn_relu(), td_nn_linear(32, 3));
    by_hand ddp = { .print = td_dist_rank() == 0 };
    int end_hook = 0;
    must(net != NULL && td_params_count(td_parameters(net)) <= MOST);
    td_printf_rank0("%s\n", name);
    if (least_bytes >= 0) {
        end_hook = open_by_hand(&ddp, td_parameters(net), least_bytes);
    } else {
        net = td_ddp(net);
        must(net != NULL);
    }
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_loader *loader = td_loader_open(train_set, .batch_size = 16,
                                       .sampler = td_distributed_sampler(.shuffle = true));
    must(end_hook >= 0 && optim != NULL && loader != NULL);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss); /* the hooks run in here */
                td_optim_step(optim);
            }
        }
        must(td_loader_status(loader) == TD_OK);
    }

    td_fingerprints mine; /* of this rank's weights */
    must(td_fingerprint(&mine, .model = net) == TD_OK);
    uint64_t bits = mine.all;
    td_printf_rank0("  fingerprint of the weights: %016llx\n", (unsigned long long)bits);
    td_fingerprints_free(&mine);
    td_loader_close(loader);
    td_optim_free(optim);
    for (int i = 0; i < ddp.count; i++) {
        td_free(ddp.messages[i].gradients);
    }
    td_remove_backward_end_hook(end_hook);
    td_module_free(net);
    td_dataset_free(test_set);
    td_dataset_free(train_set);
    return bits;
}

static int run(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    must(td_dist_init() == TD_OK);
    uint64_t each = train("a message for each gradient", 0);
    uint64_t buckets = train("buckets", (int64_t)kib * 1024), ddp = train("td_ddp", -1);
    /* Each rank compares its three, and the sum over the ranks tells whether the ranks agree. */
    double high = (double)(ddp >> 32), sum = high;
    must(td_all_reduce_numbers(NULL, &sum, 1) == TD_OK);
    bool same = each == ddp && buckets == ddp && sum == high * nprocs;
    td_printf_rank0("three ways on %d: %s\n", nprocs, same ? "the same bits" : "OTHER BITS");
    td_dist_destroy();
    return same ? 0 : 1;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, "[PROCESSES [KIB]]     (up to 8 processes, 1048576 KiB)", options);
    must(td_spawn(run, NULL, nprocs) == TD_OK);
    return 0;
}
