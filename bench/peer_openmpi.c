/* All-reduce by MPI itself, for bench/allreduce.py: started by mpirun. */
#include "bench/allreduce.h"

#include <mpi.h>

static int reduce(void *user, float *values, size_t count)
{
    (void)user;
    return MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) !=
           MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    int rank, size;
    float *values = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (posix_memalign((void **)&values, 4096, ALLREDUCE_LARGEST) != 0) {
        allreduce_fail("out of memory");
    }
    allreduce_measure(rank, size, values, reduce, NULL);
    free(values);
    MPI_Finalize();
    return 0;
}
