/* Fuzzing what a checkpoint's metadata say: whatever the text, a run is resumed in range, or
 * refused with a message, and then nothing is loaded. The input is the inside of "__metadata__":
 * {...}, behind a state of the generator; the tensors are those of the run. */
#include "apps/tools/common/train.h"
#include "data/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static const char tensors[] =
    "\"weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
    "\"bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]},"
    "\"optimizer.weight.exp_avg\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[24,40]},"
    "\"optimizer.weight.exp_avg_sq\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[40,56]},"
    "\"ema.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[56,72]},"
    "\"ema.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[72,80]}}";
enum { SAMPLES = 40, DATA = 80 };

static const train_task task = { .name = "job" };
static train_run run;
static int file;
static char path[64];
static int64_t epochs;

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void put_options(train_run *r)
{
    r->args.option_count = 0;
    const cli_option table[] = { cli_int("epochs", &epochs, 1, 1e6, "", .resume = CLI_RESTORE),
                                 cli_int("seed", &r->args.seed, 0, 9e15, "", .resume = CLI_RESTORE),
                                 cli_real("lr", &r->args.lr, 1e-12, 1e6, "", .resume = CLI_RESTORE),
                                 cli_text("device", "D", &r->args.compute.device_name, "",
                                          .resume = CLI_RESTORE),
                                 { 0 } };
    train_args_add(&r->args, table);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    require(freopen("/dev/null", "w", stdout) != NULL); /* "resumed from ..." */
    run = (train_run){ .task = &task, .app = "fuzz", .data_name = "zeros" };
    td_tensor *x = td_full(TD_SHAPE(SAMPLES, 2), 0.0, TD_F32, TD_CPU);
    td_tensor *y = td_full(TD_SHAPE(SAMPLES), 1.0, TD_I64, TD_CPU);
    run.train = td_tensor_dataset(x, y);
    run.net = td_nn_linear(2, 2);
    run.optim = td_adam(td_parameters(run.net), .lr = 0.1);
    run.made.ema = td_ema_new(run.net, .decay = 0.9);
    run.made.scaler = td_scaler_new();
    run.loader = td_loader_open(run.train, .batch_size = 4);
    require(run.loader != NULL && run.made.ema != NULL && run.made.scaler != NULL &&
            run.optim != NULL);
    td_free(x);
    td_free(y);
    file = memfd_create("checkpoint", 0);
    require(file >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    run.args.files.resume = path;
    return 0;
}

static void write_file(const uint8_t *bytes, size_t size)
{
    static const char end[] = "},";
    char begin[8 * 624 + 128];
    int begun = snprintf(begin, sizeof begin,
                         "{\"__metadata__\":{\"random.default\":\"1 624 0 0 %0*d\",", 8 * 624, 0);
    uint64_t length = (uint64_t)begun + size + sizeof end - 1 + sizeof tensors - 1;
    char data[DATA] = { 0 };
    require(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    require(write(file, &length, 8) == 8 && write(file, begin, (size_t)begun) == begun &&
            write(file, bytes, size) == (ssize_t)size && write(file, end, sizeof end - 1) > 0 &&
            write(file, tensors, sizeof tensors - 1) > 0 && write(file, data, DATA) == DATA);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size > 1 << 16) {
        return 0;
    }
    write_file(bytes, size);
    put_options(&run);
    run.args.lr = 0.1;
    td_status status = train_args_resume(&run.args, "job");
    if (status == TD_OK) {
        require(run.args.lr > 0 && run.args.lr <= 1e6 && run.args.seed >= 0);
        status = train_resume(&run);
    }
    if (status != TD_OK) {
        require(td_last_error()[0] != '\0');
        return 0;
    }
    require(train_steps_done(&run) >= 0 && isfinite(run.state.sums[0]) && run.state.seen >= 0);
    TD_STEP { /* counts go on */
        td_batch batch;
        td_loader_seek(run.loader, (uint64_t)run.state.epoch, run.state.batch);
        if (td_loader_next(run.loader, &batch)) {
            td_zero_grad(run.optim);
            td_backward(td_cross_entropy(td_forward(run.net, batch.x), batch.y));
            td_optim_step(run.optim);
            td_ema_update(run.made.ema);
        }
    }
    return 0;
}
