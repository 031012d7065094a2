/* The mesh: the ranks of the world in up to four dimensions, and groups along them. For example
 * "rep=2,dp=4": two replicas of a model, each sharded over four ranks. tandem.h does not include
 * this header.
 *
 *     td_mesh *mesh;
 *     td_mesh_new("rep=2,dp=*", &mesh);
 *     net = td_ddp(net, .shard = TD_SHARD_PARAMETERS, .mesh = mesh);
 *     ...
 *     td_mesh_free(mesh);                       (after the model, before td_dist_destroy) */
#ifndef TD_DIST_MESH_H
#define TD_DIST_MESH_H

#include "dist/dist.h"

TD_BEGIN_C

/* The dimensions, from slowest to fastest:
 *     pp   stages of a pipeline
 *     rep  replicas: ranks that keep equal shards (hybrid sharding)
 *     dp   data parallelism: ranks that read different data, and share with .shard
 *     tp   slices of tensors
 * rank = ((pp * REP + rep) * DP + dp) * TP + tp. So neighbours along tp are neighbours on a host,
 * whatever the order of the text. */
enum { TD_MESH_DIMS = 4 };

typedef struct td_mesh td_mesh;

/* text: "pp=2,dp=4". A dimension that is not in the text has size 1. The product of all sizes must
 * be the number of ranks; one size may be "*": what is left. NULL: $TANDEM_MESH, which tdrun --mesh
 * sets; otherwise "dp=*". All ranks of the world call td_mesh_new with the same text. If it is
 * wrong on one rank, all ranks get its error. */
td_status td_mesh_new(const char *text, td_mesh **mesh);

/* dims: one dimension, "tp", or several, "rep+dp". The number of ranks along them (1 if the text
 * does not have them), and this rank's number among these, from 0. Another name is a fatal error.
 */
int td_mesh_size(const td_mesh *mesh, const char *dims);
int td_mesh_rank(const td_mesh *mesh, const char *dims);

/* The group of the ranks that differ from this one along dims alone. td_mesh_rank is the rank in
 * it. It is made by the first call, which all ranks of the world make at the same place; the mesh
 * owns it. NULL with td_last_error() if it cannot be made. */
td_group *td_mesh_group(td_mesh *mesh, const char *dims);

/* NULL is fine. */
void td_mesh_free(td_mesh *mesh);

/* Reads a text without a world: sizes of pp, rep, dp, tp; 0 for "*". With a number of ranks (not 0)
 * it checks the product, and "*" becomes what is left. */
td_status td_mesh_read(const char *text, int ranks, int sizes[TD_MESH_DIMS]);

TD_END_C

#endif
