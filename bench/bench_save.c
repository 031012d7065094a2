/* How fast a checkpoint of a training run is written and read: blocks of LayerNorm, Linear d -> 4d,
 * GELU, Linear 4d -> d, with Adam's state. Writing goes into the page cache; what syncing to the
 * disk adds is told apart. The limit of the machine is a plain write of as many bytes. Then a
 * checkpoint is saved in the background: how long the program waits, and a step beside it takes.
 *
 * usage: bench_save [file] [blocks] [width] [turns]
 * Started by tdrun, the ranks share parameters, gradients and Adam's state, and save in the
 * foreground only. */
#include "nn/module.h"
#include "tandem.h"
#include "tensor/clock.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static double sync_seconds;

/* In the place of the C library's: the time is taken. */
int fsync(int fd)
{
    double begin = td_clock();
    int result = (int)syscall(SYS_fsync, fd);
    sync_seconds += td_clock() - begin;
    return result;
}

static void require(bool holds)
{
    if (!holds) {
        td_die();
    }
}

static td_module *make_net(int64_t blocks, int64_t width)
{
    td_module **list = calloc((size_t)blocks, sizeof *list);
    require(list != NULL);
    for (int64_t i = 0; i < blocks; i++) {
        list[i] = td_nn_sequential(td_nn_layer_norm(width), td_nn_linear(width, 4 * width),
                                   td_nn_gelu(), td_nn_linear(4 * width, width));
    }
    td_module *net = td_nn_sequential_list(list, (int)blocks);
    free(list);
    return net;
}

static double step(td_module *net, td_optim *optim, td_tensor *x)
{
    double begin = td_clock();
    td_step_begin();
    td_zero_grad(optim);
    td_backward(td_mean(td_forward(net, x)));
    td_optim_step(optim);
    td_step_end();
    return td_clock() - begin;
}

/* Steps alone, and steps while a checkpoint is written: means of milliseconds. */
static void save_beside(const char *path, td_module *net, td_optim *optim, td_tensor *x)
{
    enum { ALONE = 4 };
    td_saving *saving = NULL;
    double alone = 0.0, beside = 0.0;
    int steps = 0;
    for (int i = 0; i < ALONE; i++) {
        alone += step(net, optim, x) / ALONE;
    }
    double begin = td_clock();
    require(td_checkpoint_save(path, net, .optim = optim, .background = &saving) == TD_OK);
    double stopped = td_clock() - begin;
    do {
        beside += step(net, optim, x);
        steps++;
    } while (!td_saving_is_written(saving));
    double written = td_clock() - begin;
    require(td_saving_wait(&saving) == TD_OK);
    printf(
        "in the background: the program waits %.2f s, the file is there after %.2f s; a step takes "
        "%.0f ms, beside it %.0f (%+.0f %%, %d steps)\n",
        stopped, written, 1e3 * alone, 1e3 * beside / steps, 100.0 * (beside / steps / alone - 1.0),
        steps);
}

/* GB/s of write() into a file of so many bytes, a MiB at a time. */
static double plain_write(const char *path, int64_t bytes)
{
    enum { PIECE = 1 << 20 };
    char *piece = malloc(PIECE);
    (void)unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    if (piece == NULL || fd < 0) {
        fprintf(stderr, "bench_save: cannot write %s\n", path);
        exit(1);
    }
    memset(piece, 1, PIECE);
    double begin = td_clock();
    for (int64_t at = 0; at < bytes; at += PIECE) {
        if (write(fd, piece, PIECE) != PIECE) {
            fprintf(stderr, "bench_save: no room for %s\n", path);
            exit(1);
        }
    }
    double seconds = td_clock() - begin;
    close(fd);
    free(piece);
    return (double)bytes / seconds * 1e-9;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "bench_save.safetensors";
    int64_t blocks = argc > 2 ? strtol(argv[2], NULL, 10) : 26;
    int64_t width = argc > 3 ? strtol(argv[3], NULL, 10) : 768;
    int turns = argc > 4 ? atoi(argv[4]) : 5;
    bool shares = td_dist_is_launched();
    require(!shares || td_dist_init() == TD_OK);
    bool first = td_dist_rank() == 0;
    td_module *net = make_net(blocks, width);
    net = shares ? td_ddp(net, .strategy = td_zero(TD_SHARD_PARAMETERS)) : net;
    require(net != NULL);
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-4);
    td_tensor *x = td_new(TD_SHAPE(64, width), TD_F32, TD_CPU);
    require(net != NULL && optim != NULL && x != NULL);
    td_normal_(x, 0.0, 1.0, td_default_generator());
    (void)step(net, optim, x);
    int64_t bytes = 12 * blocks * (8 * width * width + 7 * width); /* value, two averages */
    td_printf_rank0("%.1f M parameters with Adam, %.2f GB\n", (double)bytes / 12e6,
                    (double)bytes * 1e-9);
    for (int i = 0; i < turns; i++) {
        double limit = first ? plain_write(path, bytes) : 0.0;
        require(!shares || td_barrier(NULL) == TD_OK);
        sync_seconds = 0.0;
        double begin = td_clock();
        require(td_checkpoint_save(path, net, .optim = optim) == TD_OK);
        double saved = td_clock() - begin - sync_seconds;
        begin = td_clock();
        require(td_checkpoint_load(path, net, .optim = optim) == TD_OK);
        double loaded = td_clock() - begin;
        td_printf_rank0(
            "saved %5.2f GB/s (a plain write %5.2f), then synced in %.2f s; loaded %5.2f GB/s\n",
            (double)bytes / saved * 1e-9, limit, sync_seconds, (double)bytes / loaded * 1e-9);
    }
    for (int i = 0; i < turns && !shares; i++) {
        save_beside(path, net, optim, x);
    }
    require(!shares || td_barrier(NULL) == TD_OK);
    (void)unlink(path);
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
    return td_finish();
}
