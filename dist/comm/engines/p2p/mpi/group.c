/* MPI's beginning and end, and the groups' communicators. MPI begins with the first group and ends
 * when the process exits, because it can begin only once. */
#include "dist/comm/engines/p2p/mpi/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CREATE_TAG = 7 };

pthread_mutex_t td_mpi_lock = PTHREAD_MUTEX_INITIALIZER;
int td_mpi_groups;
bool td_mpi_spoilt;
_Thread_local char td_mpi_error[TD_MPI_ERROR_BYTES];

/* ---- errors ---- */

td_p2p_result td_mpi_fail(const char *what)
{
    snprintf(td_mpi_error, sizeof td_mpi_error, "%s", what);
    return TD_P2P_FAILED;
}

td_p2p_result td_mpi_check(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS) {
        return TD_P2P_OK;
    }
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        snprintf(text, sizeof text, "error %d", code);
    }
    snprintf(td_mpi_error, sizeof td_mpi_error, "%s: %s", call, text);
    return TD_P2P_FAILED;
}

/* ---- beginning and end of MPI ---- */

static void end_mpi(void)
{
    int ended = 0;
    /* If a rank exits without MPI_Finalize, mpirun ends the other ranks. That is right if the rank
     * has left a group that still runs. */
    if (td_mpi_groups == 0 && !td_mpi_spoilt && MPI_Finalized(&ended) == MPI_SUCCESS && !ended) {
        MPI_Finalize();
    }
}

/* Without a launcher MPI would begin a world of one process, after seconds. */
static bool was_launched(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL ||
           getenv("PMI_RANK") != NULL;
}

static td_p2p_result begin_mpi(void)
{
    int begun = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&begun);
    if (!begun) {
        if (!was_launched()) {
            snprintf(td_mpi_error, sizeof td_mpi_error,
                     "this process was not started by MPI's launcher: %s",
                     getenv("SLURM_JOB_ID") != NULL
                         ? "in a Slurm job that is srun --mpi=pmix PROGRAM (srun --mpi=list shows "
                           "whether this Slurm has it), or mpirun PROGRAM in sbatch or salloc"
                         : "mpirun -n RANKS PROGRAM, or srun --mpi=pmix PROGRAM");
            return TD_P2P_REFUSED;
        }
        if (td_mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level),
                         "MPI_Init_thread") != TD_P2P_OK) {
            return TD_P2P_FAILED;
        }
        atexit(end_mpi);
    }
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED) {
        return td_mpi_fail(
            "this MPI does not bear calls from several threads (MPI_THREAD_SERIALIZED)");
    }
    return TD_P2P_OK;
}

/* ---- beginning and end of a group's connections ---- */

static void name_key(char key[32], int rank)
{
    snprintf(key, 32, "mpi/%d", rank);
}

/* The ranks of the group, by their numbers in MPI's world. */
static td_p2p_result find_members(const td_p2p_options *o, int *members)
{
    char key[32], text[16];
    int mine, world;
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (world < o->size) {
        snprintf(td_mpi_error, sizeof td_mpi_error,
                 "MPI's world has %d process%s, and the group has %d ranks: start that many, by "
                 "mpirun -n %d PROGRAM",
                 world, world == 1 ? "" : "es", o->size, o->size);
        return TD_P2P_REFUSED;
    }
    name_key(key, o->rank);
    snprintf(text, sizeof text, "%d", mine);
    if (o->set(o->store, key, text, strlen(text) + 1) != 0) {
        return td_mpi_fail("the store does not take this rank's number");
    }
    for (int r = 0; r < o->size; r++) {
        void *value;
        size_t size;
        name_key(key, r);
        if (o->get(o->store, key, o->timeout, &value, &size) != 0) {
            snprintf(td_mpi_error, sizeof td_mpi_error, "rank %d has not come", r);
            return TD_P2P_TIMEOUT;
        }
        members[r] = atoi(value);
        o->release(value);
    }
    return TD_P2P_OK;
}

static td_p2p_result make_communicator(td_p2p *p2p, const td_p2p_options *o)
{
    int *members = malloc((size_t)o->size * sizeof *members), *limit, found = 0;
    if (members == NULL) {
        return td_mpi_fail("out of memory");
    }
    td_p2p_result result = find_members(o, members);
    MPI_Group world, group;
    if (result == TD_P2P_OK) {
        MPI_Comm_group(MPI_COMM_WORLD, &world);
        result = td_mpi_check(MPI_Group_incl(world, o->size, members, &group), "MPI_Group_incl");
        MPI_Group_free(&world);
    }
    free(members);
    if (result != TD_P2P_OK) {
        return result;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    result = td_mpi_check(MPI_Comm_create_group(MPI_COMM_WORLD, group, CREATE_TAG, &p2p->comm),
                          "MPI_Comm_create_group");
    MPI_Group_free(&group);
    if (result != TD_P2P_OK) {
        return result;
    }
    MPI_Comm_set_errhandler(p2p->comm, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(p2p->comm, MPI_TAG_UB, &limit, &found);
    p2p->tag_bits = TD_MPI_LEAST_TAG_BITS;
    while (found && p2p->tag_bits < 30 && *limit >= (1 << (p2p->tag_bits + 1)) - 1) {
        p2p->tag_bits++;
    }
    return TD_P2P_OK;
}

td_p2p_result td_mpi_open(td_p2p **out, const td_p2p_options *options)
{
    *out = NULL;
    td_p2p *p2p = calloc(1, sizeof *p2p + (size_t)options->size * sizeof(double));
    if (p2p == NULL) {
        return td_mpi_fail("out of memory");
    }
    p2p->size = options->size;
    pthread_mutex_lock(&td_mpi_lock);
    td_p2p_result result = begin_mpi();
    if (result == TD_P2P_OK) {
        result = make_communicator(p2p, options);
        td_mpi_groups += result == TD_P2P_OK;
        td_mpi_spoilt = td_mpi_spoilt || result != TD_P2P_OK;
    }
    pthread_mutex_unlock(&td_mpi_lock);
    if (result != TD_P2P_OK) {
        free(p2p);
        return result;
    }
    *out = p2p;
    return TD_P2P_OK;
}

void td_mpi_close(td_p2p *p2p)
{
    pthread_mutex_lock(&td_mpi_lock);
    td_mpi_groups--;
    if (!td_mpi_spoilt && !p2p->failed) {
        MPI_Comm_free(&p2p->comm);
    }
    pthread_mutex_unlock(&td_mpi_lock);
    free(p2p);
}
