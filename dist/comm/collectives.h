/* More of process groups than most training programs need: groups of some ranks, more collectives,
 * and memory that a backend reduces without a copy. tandem.h does not include this header. The
 * rules of dist/comm/comm.h for tensors, `work` and errors apply here, too. Group NULL means the
 * world. */
#pragma once

#include "dist/comm/comm.h"

TD_BEGIN_C

/* ---- groups ---- */

td_group *td_dist_world(void); /* all ranks; fatal before td_dist_init */

int td_group_rank(const td_group *group); /* this process's rank in the group */
int td_group_size(const td_group *group);

/* Makes a group of some ranks of the world; `ranks` is ascending. All ranks of the world call
 * td_group_new with the same list, members or not. *group is NULL on ranks that are no members. */
td_status td_group_new(const int *ranks, int count, td_group **group);
/* Frees a group of td_group_new. td_dist_destroy frees the world. */
void td_group_free(td_group *group);
/* Breaks the group on purpose: outstanding and later collectives of all ranks fail with the reason.
 * Any thread may call td_group_abort, any number of times. */
void td_group_abort(td_group *group, const char *reason);

/* ---- collectives ---- */

/* Whether a collective that was queued has ended, in success or failure. */
bool td_work_test(const td_work *work);
/* When a collective was queued, began and ended: seconds on CLOCK_MONOTONIC; 0: not yet. May be
 * called after td_work_wait, too, until the next collective of the group. */
void td_work_times(const td_work *work, double *queued, double *begun, double *ended);

/* in has the shape [size, out...]. Rank r gets the reduction of all ranks' in[r]. */
td_status td_reduce_scatter(td_group *group, td_tensor *out, const td_tensor *in, td_reduction op,
                            td_work **work);
/* Like td_all_reduce, but only `root` gets the result. */
td_status td_reduce(td_group *group, td_tensor *t, td_reduction op, int root, td_work **work);
/* Rank `root` gets the `in` of all ranks: out is [size, in...] on root, NULL elsewhere. */
td_status td_gather(td_group *group, td_tensor *out, const td_tensor *in, int root, td_work **work);
/* Rank r gets in[r] of rank `root`: in is [size, out...] on root, NULL elsewhere. */
td_status td_scatter(td_group *group, td_tensor *out, const td_tensor *in, int root,
                     td_work **work);
/* in and out have the shape [size, ...]. Rank r gets in[r] of every rank q as out[q]. */
td_status td_all_to_all(td_group *group, td_tensor *out, const td_tensor *in, td_work **work);

/* Like td_all_gather. `unit` is a number for what is gathered: if it differs between ranks, that is
 * an error, like sizes that differ. */
td_status td_all_gather_unit(td_group *group, td_tensor *out, const td_tensor *in, int unit,
                             td_work **work);

/* td_send and td_recv with a name for the message, of at most 8 characters. A message that arrives
 * under another name is an error that gives both names. So two messages of one shape cannot take
 * each other's place without being noticed. */
td_status td_send_named(td_group *group, const td_tensor *t, int to, const char *name,
                        td_work **work);
td_status td_recv_named(td_group *group, td_tensor *t, int from, const char *name, td_work **work);

/* ---- other ---- */

/* Agrees on an outcome: TD_OK if it is `mine` on all ranks; otherwise all ranks get the status of
 * the first rank that failed, and its message with its rank. */
td_status td_group_agree(td_group *group, td_status mine);

/* A barrier whose error names the ranks that have not arrived within `timeout` seconds. */
td_status td_monitored_barrier(td_group *group, double timeout);

/* A persistent 1-d tensor of zeros in memory that the group's backend reduces without a copy (shm:
 * shared memory). All ranks call td_group_memory in the same order with the same count. You td_free
 * the tensor before the group ends. Backends without such memory give ordinary memory. NULL with
 * td_last_error() when memory is short. */
td_tensor *td_group_memory(td_group *group, int64_t count, td_dtype dtype);

/* td_group_weave maps all ranks' tensors of one td_group_memory call into one range of addresses
 * (it "weaves" them).
 * Each tensor is cut into `pieces` pieces. The k-th pieces of all ranks, in the order of ranks,
 * fill elements cuts[k] to cuts[k + 1] of the range. So each rank reads the other ranks' elements
 * without a copy; a write changes them for all ranks. All ranks give the same cuts, ascending from
 * 0, and every piece is whole pages of memory. `memory` owns the range: td_free(memory) unmaps
 * both.
 *
 * Not a collective. NULL with td_last_error(): the backend is not shm (a group of one rank can
 * weave with any backend), or the system allows no more mappings. td_group_can_weave says whether
 * the backend can weave. */
bool td_group_can_weave(td_group *group);
void *td_group_weave(td_group *group, const td_tensor *memory, const int64_t *cuts, int pieces);

TD_END_C
