/* All-reduce through tandem's engines: a rank (if a launcher has started it), or all ranks of this
 * host. bench/allreduce.py runs it, side by side with others.
 *
 * usage: bench_allreduce BACKEND plain|registered RANKS */
#include "tandem.h"

#include "bench/allreduce.h"
#include "dist/comm/collectives.h"

#include <stdlib.h>
#include <string.h>

typedef struct job {
    const char *backend;
    bool registered;
    int ranks;
    td_tensor *whole;
} job;

static int reduce(void *user, float *values, size_t count)
{
    (void)values; /* those of the tensor */
    job *j = user;
    td_tensor part = *j->whole;
    part.shape[0] = (int64_t)count;
    td_status status = td_all_reduce(NULL, &part, TD_SUM, NULL);
    if (status != TD_OK) {
        fprintf(stderr, "bench_allreduce: %s\n", td_last_error());
    }
    return status != TD_OK;
}

static int be_rank(int rank, void *user)
{
    (void)rank;
    job *j = user;
    if (td_dist_init(.backend = j->backend, .timeout = 30) != TD_OK) {
        fprintf(stderr, "bench_allreduce: %s\n", td_last_error());
        return 1;
    }
    const int64_t most = ALLREDUCE_LARGEST / (int64_t)sizeof(float);
    j->whole = j->registered ? td_group_memory(NULL, most, TD_F32)
                             : td_zeros(TD_SHAPE(most), TD_F32, TD_CPU);
    if (j->whole == NULL) {
        fprintf(stderr, "bench_allreduce: %s\n", td_last_error());
        return 1;
    }
    allreduce_measure(td_dist_rank(), td_dist_world_size(), td_data_rw(j->whole), reduce, j);
    td_free(j->whole);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: bench_allreduce BACKEND plain|registered RANKS\n");
        return 64;
    }
    job j = { .backend = argv[1],
              .registered = strcmp(argv[2], "registered") == 0,
              .ranks = atoi(argv[3]) };
    if (getenv("RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL) {
        return be_rank(0, &j);
    }
    if (td_spawn(be_rank, &j, j.ranks) != TD_OK) {
        fprintf(stderr, "bench_allreduce: %s\n", td_last_error());
        return 1;
    }
    return 0;
}
