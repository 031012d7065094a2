/* The mesh: the ranks of the world, numbered in up to four dimensions, and groups along them. The
 * ranks along a dimension are those that differ only in their number in that dimension. For example
 * "rep=2,dp=4": two replicas of a model, each divided among the four ranks along dp. tandem.h does
 * not include this header.
 *
 *     td_mesh *mesh;
 *     td_mesh_new("rep=2,dp=*", &mesh);
 *     net = td_ddp(net, .strategy = td_zero(3), .mesh = mesh);
 *     ...
 *     td_mesh_free(mesh);                       (after the model, before td_dist_destroy) */
#pragma once

#include "dist/comm/comm.h"

TD_BEGIN_C

/* The dimensions, from slowest to fastest:
 *     pp   stages of a pipeline
 *     rep  replicas: ranks that keep equal parts of the model (hybrid sharding)
 *     dp   data parallelism: ranks that read different data, and divide the model with td_zero
 *     tp   slices of tensors
 * rank = ((pp * REP + rep) * DP + dp) * TP + tp. So neighbours along tp are neighbours on a host,
 * whatever the order of the text.
 *
 * td_ddp uses rep and dp, td_tensor_parallel (dist/slices/slices.h) tp, and td_pipeline
 * (dist/pipeline/pipeline.h) pp. Of the training programs of apps/ gpt takes all of them; the
 * others refuse a mesh with pp or tp above 1. */
enum { TD_MESH_DIMS = 4 };

typedef struct td_mesh td_mesh;

/* text: "pp=2,dp=4". A dimension that the text does not name has size 1. The product of all sizes
 * must be the number of ranks. One size may be "*": the number of ranks, divided by the product of
 * the other sizes. text NULL: $TANDEM_MESH, which tdrun --mesh sets; otherwise "dp=*".
 *
 * All ranks of the world call td_mesh_new, with the same sizes. You free *mesh. TD_E_ARG
 * on all ranks if one rank's text is wrong, TD_E_MISMATCH if sizes differ; then *mesh is NULL. */
td_status td_mesh_new(const char *text, td_mesh **mesh);

/* The number of ranks along one dimension ("tp") or several ("rep+dp"), and this rank's number
 * among those ranks, counted from 0. A dimension that the mesh's text does not name has size 1.
 * Another name is a fatal error. */
int td_mesh_size(const td_mesh *mesh, const char *dims);
int td_mesh_rank(const td_mesh *mesh, const char *dims);

/* The group of the ranks that differ from this rank only along dims. td_mesh_rank(mesh, dims) is
 * this rank's number in the group. The first call with these dims makes the group: all ranks of the
 * world make that call at the same place. The mesh owns the group. NULL with td_last_error() if the
 * group cannot be made. */
td_group *td_mesh_group(td_mesh *mesh, const char *dims);

/* Frees the mesh and its groups: after all models that use them. NULL is fine. */
void td_mesh_free(td_mesh *mesh);

/* Reads a text without a world: the sizes of pp, rep, dp, tp. ranks 0: any number of ranks, and the
 * size 0 stands for "*". Otherwise the sizes must fit that number of ranks. TD_E_ARG. */
td_status td_mesh_read(const char *text, int ranks, int sizes[TD_MESH_DIMS]);

TD_END_C
