/* A rank of captured DDP runs on a device, for tests/cuda/test_cuda_captured_ranks.sh and, on a
 * GPU, tests/gpu/nccl.sh:
 *
 *     worker_captured DEVICE equal     captured steps equal eager steps, to the bit
 *     worker_captured DEVICE few       the same, of the first three kinds of jobs
 *     worker_captured DEVICE refuse    rank 1 reads its loss: no rank captures its steps
 *     worker_captured DEVICE die       rank 1 kills itself between replays; the others must be told
 *
 * Every rank says in one line what it has found, and ends with 0 if it has the same bits, or was
 * told. */
#include "tensor/extend.h"
#include "tests/tensor/captured_job.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 16, TAIL_EVERY = 5, LAST_OF_VICTIM = 9 };

static void must(td_status status)
{
    if (status != TD_OK) {
        fprintf(stderr, "%s\n", td_last_error());
        exit(2);
    }
}

static const char *name_of(const captured_kind *kind)
{
    static const char *const shards[] = { "", "sharded", "gradients sharded", "values sharded" };
    return kind->replicas          ? "replicas"
           : kind->offload != NULL ? "offloaded"
           : kind->wire != NULL    ? "bf16 on the wire"
           : kind->shard           ? shards[kind->shard]
           : kind->scaler          ? "scaled"
           : kind->accumulate > 0  ? kind->clip > 0 ? "clipped sums" : "sums"
           : kind->clip > 0        ? "clipped"
           : kind->loader          ? "a loader's pictures"
           : kind->pictures        ? "pictures"
                                   : "vectors";
}

/* The same steps eagerly and captured; whether all results and weights have the same bits. */
static bool compare(captured_kind kind, bool reads, td_captured_stats *figures)
{
    captured_job plain, job;
    td_math before = td_math_now();
    if (kind.scaler) {
        td_set_math((td_math){ .precision = TD_PRECISION_FP16 });
    }
    captured_job_open(&plain, kind);
    captured_job_open(&job, kind);
    job.reads = reads;
    td_captured *captured = captured_job_capture(&job);
    double here[STEPS][2], there[STEPS][2];
    int read = 0;
    for (int i = 0; i < STEPS; i++) {
        bool tail = i % TAIL_EVERY == TAIL_EVERY - 1;
        captured_job_step(&plain, tail, here[i]);
        must(captured_job_captured_step(&job, captured, tail));
        if (td_captured_full(captured)) {
            must(td_captured_next(captured, there[read++]));
        }
    }
    while (td_captured_waiting(captured) > 0) {
        must(td_captured_next(captured, there[read++]));
    }
    bool same = memcmp(here, there, sizeof here) == 0 &&
                captured_job_hash(&plain) == captured_job_hash(&job);
    *figures = td_captured_now(captured);
    printf("rank %d of %d: %s, %s: %" PRId64 " eager, %" PRId64 " recorded, %" PRId64
           " replayed%s%s\n",
           td_dist_rank(), td_dist_world_size(), name_of(&kind),
           same ? "the same bits" : "OTHER BITS", figures->eager, figures->recorded,
           figures->replayed, figures->why[0] != '\0' ? "; " : "", figures->why);
    td_captured_free(captured);
    captured_job_close(&job);
    captured_job_close(&plain);
    td_set_math(before);
    return same;
}

static int check_equal(td_device device, size_t most, bool reads)
{
    const captured_kind kinds[] = {
        { .device = device, .optim = CAPTURED_SGD, .pictures = true, .ddp = true },
        { .device = device, .optim = CAPTURED_ADAM, .ddp = true, .ema = true },
        { .device = device, .optim = CAPTURED_ADAM, .ddp = true, .shard = TD_SHARD_PARAMETERS },
        { .device = device, .optim = CAPTURED_SGD, .pictures = true, .ddp = true, .accumulate = 2 },
        { .device = device, .optim = CAPTURED_SGD, .pictures = true, .ddp = true, .clip = 0.02 },
        { .device = device, .optim = CAPTURED_ADAM, .ddp = true, .accumulate = 2, .clip = 0.02 },
        { .device = device, .optim = CAPTURED_SGD, .loader = true, .ddp = true },
        { .device = device, .optim = CAPTURED_ADAM, .ddp = true, .scaler = true },
        { .device = device, .optim = CAPTURED_ADAM, .ddp = true, .shard = TD_SHARD_OPTIMIZER },
        { .device = device, .optim = CAPTURED_ADAM, .ddp = true, .shard = TD_SHARD_GRADIENTS },
        { .device = device,
          .optim = CAPTURED_ADAM,
          .ddp = true,
          .shard = TD_SHARD_PARAMETERS,
          .wire = "bf16" },
        { .device = device,
          .optim = CAPTURED_ADAM,
          .ddp = true,
          .shard = TD_SHARD_PARAMETERS,
          .offload = "cpu" },
        { .device = device,
          .optim = CAPTURED_ADAM,
          .ddp = true,
          .shard = TD_SHARD_GRADIENTS,
          .replicas = true },
    };
    bool right = true;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds && k < most; k++) {
        td_captured_stats figures;
        right = compare(kinds[k], reads, &figures) && right;
    }
    return right ? 0 : 1;
}

static int check_death(td_device device)
{
    captured_job job;
    captured_job_open(
        &job,
        (captured_kind){ .device = device, .optim = CAPTURED_SGD, .pictures = true, .ddp = true });
    td_captured *captured = captured_job_capture(&job);
    td_status status = TD_OK;
    double values[2];
    int steps = 0;
    for (; status == TD_OK && steps < 10 * STEPS; steps++) {
        if (steps == LAST_OF_VICTIM && td_dist_rank() == 1) {
            (void)raise(SIGKILL);
        }
        status = captured_job_captured_step(&job, captured, false);
        if (status == TD_OK && td_captured_full(captured)) {
            status = td_captured_next(captured, values);
        }
    }
    printf("rank %d was told: %s\n", td_dist_rank(), status == TD_OK ? "nothing" : td_last_error());
    printf("rank %d: %" PRId64 " replayed\n", td_dist_rank(), td_captured_now(captured).replayed);
    fflush(stdout);
    td_captured_free(captured);
    captured_job_close(&job);
    return status != TD_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    td_device device;
    if (argc != 3 || td_device_parse(argv[1], &device) != TD_OK || getenv("MEET") == NULL ||
        getenv("RANK") == NULL || getenv("WORLD_SIZE") == NULL) {
        fprintf(stderr,
                "usage: MEET=file://FILE RANK=N WORLD_SIZE=N worker_captured DEVICE "
                "equal|few|refuse|die (%s)\n",
                argc == 3 ? td_last_error() : "");
        return 64;
    }
    td_dist_options options = { .timeout = 30,
                                .init_method = getenv("MEET"),
                                .rank = atoi(getenv("RANK")),
                                .world_size = atoi(getenv("WORLD_SIZE")) };
    unsetenv("RANK"); /* what it is by the options, it is not by the environment */
    unsetenv("WORLD_SIZE");
    must(td_dist_init_at(options, TD_HERE));
    bool refuse = strcmp(argv[2], "refuse") == 0;
    size_t most = strcmp(argv[2], "few") == 0 ? 3 : SIZE_MAX;
    int code = strcmp(argv[2], "die") == 0
                   ? check_death(device)
                   : check_equal(device, most, refuse && td_dist_rank() == 1);
    td_dist_destroy();
    return code;
}
