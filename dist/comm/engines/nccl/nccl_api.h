/* NCCL's functions as far as they are used, loaded when the first GPU collective asks for them. The
 * declarations repeat NCCL's stable binary interface (nccl.h, 2.18 and later), so that every build
 * has the engine, with or without that header. Where it is, tests/comm/test_dist_nccl_api.c
 * compares them. */
#pragma once

#include "tensor/error.h"

#include <stddef.h>

typedef struct td_nccl_id {
    char bytes[128];
} td_nccl_id;

typedef void *td_nccl_comm;

typedef enum td_nccl_result {
    TD_NCCL_SUCCESS = 0,
    TD_NCCL_IN_PROGRESS = 7,
} td_nccl_result;

typedef enum td_nccl_op {
    TD_NCCL_SUM = 0,
    TD_NCCL_PROD = 1,
    TD_NCCL_MAX = 2,
    TD_NCCL_MIN = 3,
    TD_NCCL_AVG = 4,
} td_nccl_op;

typedef enum td_nccl_type {
    TD_NCCL_U8 = 1,
    TD_NCCL_I32 = 2,
    TD_NCCL_I64 = 4,
    TD_NCCL_F16 = 6,
    TD_NCCL_F32 = 7,
    TD_NCCL_F64 = 8,
    TD_NCCL_BF16 = 9,
} td_nccl_type;

/* The beginning of ncclConfig_t, as of 2.18; later versions take a shorter one by its size. */
typedef struct td_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} td_nccl_config;

enum { TD_NCCL_UNDEFINED = -2147483647 - 1, TD_NCCL_CONFIG_VERSION = 21800 };
#define TD_NCCL_CONFIG_MAGIC 0xcafebeefu

/* TD_NCCL_FUNCTION(member, symbol, parameters); all return td_nccl_result. */
#define TD_NCCL_FUNCTIONS                                                                          \
    TD_NCCL_FUNCTION(get_version, ncclGetVersion, (int *version))                                  \
    TD_NCCL_FUNCTION(get_unique_id, ncclGetUniqueId, (td_nccl_id * id))                            \
    TD_NCCL_FUNCTION(                                                                              \
        init_rank_config, ncclCommInitRankConfig,                                                  \
        (td_nccl_comm * comm, int size, td_nccl_id id, int rank, td_nccl_config *config))          \
    TD_NCCL_FUNCTION(async_error, ncclCommGetAsyncError, (td_nccl_comm comm, int *result))         \
    TD_NCCL_FUNCTION(finalize, ncclCommFinalize, (td_nccl_comm comm))                              \
    TD_NCCL_FUNCTION(destroy, ncclCommDestroy, (td_nccl_comm comm))                                \
    TD_NCCL_FUNCTION(abort, ncclCommAbort, (td_nccl_comm comm))                                    \
    TD_NCCL_FUNCTION(group_start, ncclGroupStart, (void))                                          \
    TD_NCCL_FUNCTION(group_end, ncclGroupEnd, (void))                                              \
    TD_NCCL_FUNCTION(all_reduce, ncclAllReduce,                                                    \
                     (const void *in, void *out, size_t count, int type, int op,                   \
                      td_nccl_comm comm, void *stream))                                            \
    TD_NCCL_FUNCTION(broadcast, ncclBroadcast,                                                     \
                     (const void *in, void *out, size_t count, int type, int root,                 \
                      td_nccl_comm comm, void *stream))                                            \
    TD_NCCL_FUNCTION(reduce, ncclReduce,                                                           \
                     (const void *in, void *out, size_t count, int type, int op, int root,         \
                      td_nccl_comm comm, void *stream))                                            \
    TD_NCCL_FUNCTION(                                                                              \
        all_gather, ncclAllGather,                                                                 \
        (const void *in, void *out, size_t count, int type, td_nccl_comm comm, void *stream))      \
    TD_NCCL_FUNCTION(reduce_scatter, ncclReduceScatter,                                            \
                     (const void *in, void *out, size_t count, int type, int op,                   \
                      td_nccl_comm comm, void *stream))                                            \
    TD_NCCL_FUNCTION(                                                                              \
        send, ncclSend,                                                                            \
        (const void *in, size_t count, int type, int peer, td_nccl_comm comm, void *stream))       \
    TD_NCCL_FUNCTION(                                                                              \
        recv, ncclRecv,                                                                            \
        (void *out, size_t count, int type, int peer, td_nccl_comm comm, void *stream))

typedef struct td_nccl_api {
#define TD_NCCL_FUNCTION(member, symbol, parameters) td_nccl_result(*member) parameters;
    TD_NCCL_FUNCTIONS
#undef TD_NCCL_FUNCTION
    const char *(*error_string)(int result);
    const char *(*last_error)(td_nccl_comm comm);
} td_nccl_api;

/* libnccl.so.2 from $TANDEM_NCCL (a file), where the loader looks, where CUDA lies, or in a Python
 * environment's wheel. NULL with td_last_error(): what is missing, where it was looked for, and how
 * to get it. Loaded once a process. */
const td_nccl_api *td_nccl_load(void);
