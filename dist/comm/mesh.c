/* The mesh: which ranks are neighbours along which dimension. */
#include "dist/comm/mesh.h"

#include "dist/comm/collectives.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 65536, EVERY = 1 << TD_MESH_DIMS };

static const char *const names[TD_MESH_DIMS] = { "pp", "rep", "dp", "tp" };

struct td_mesh {
    int size[TD_MESH_DIMS];
    td_group *groups[EVERY]; /* by the set of dimensions, a bit for each; NULL: not made */
};

/* ---- the text ---- */

/* A dimension's number; -1: there is none of that name. */
static int find_dim(const char *name, size_t length)
{
    for (int d = 0; d < TD_MESH_DIMS; d++) {
        if (strlen(names[d]) == length && memcmp(names[d], name, length) == 0) {
            return d;
        }
    }
    return -1;
}

/* One item, "dp=4" or "dp=*", of `length` characters. Sizes that were not given are -1. */
static td_status read_item(const char *text, const char *item, size_t length, int *sizes)
{
    const char *equals = memchr(item, '=', length);
    int d = equals != NULL ? find_dim(item, (size_t)(equals - item)) : -1;
    TD_CHECK(d >= 0, TD_E_ARG,
             "the mesh '%.100s': '%.*s' is not DIMENSION=SIZE; dimensions are pp, rep, "
             "dp and tp, as in dp=4,tp=2",
             text, (int)(length < 40 ? length : 40), item);
    TD_CHECK(sizes[d] < 0, TD_E_ARG, "the mesh '%.100s' has %s twice", text, names[d]);
    const char *end = item + length;
    char *read = NULL;
    long size = equals[1] == '*' ? 0 : strtol(equals + 1, &read, 10);
    bool whole = equals[1] == '*' ? equals + 2 == end : read == end && size >= 1;
    TD_CHECK(whole && size <= MOST_RANKS, TD_E_ARG,
             "the mesh '%.100s': the size of %s is a whole number from 1 to %d, or *: "
             "what is left",
             text, names[d], MOST_RANKS);
    sizes[d] = (int)size;
    return TD_OK;
}

/* Fills in "*", or checks the product. rest: the dimension that is "*"; -1: none is. */
static td_status fit(const char *text, int ranks, long long product, int rest, int *sizes)
{
    if (rest >= 0 && ranks % product == 0) {
        sizes[rest] = (int)(ranks / product);
        return TD_OK;
    }
    if (rest < 0 && product == ranks) {
        return TD_OK;
    }
    return rest >= 0 ? td_fail(TD_E_ARG,
                               "the mesh '%.100s' does not fit %d ranks: %d is no multiple of "
                               "%lld, the product of the other dimensions; start %lld, or another "
                               "multiple",
                               text, ranks, ranks, product, (ranks / product + 1) * product)
                     : td_fail(TD_E_ARG,
                               "the mesh '%.100s' is for %lld ranks, not for %d: start as many "
                               "processes, or write * in place of one size",
                               text, product, ranks);
}

td_status td_mesh_read(const char *text, int ranks, int sizes[TD_MESH_DIMS])
{
    long long product = 1;
    int rest = -1;
    for (int d = 0; d < TD_MESH_DIMS; d++) {
        sizes[d] = -1;
    }
    for (const char *item = text;; item++) {
        size_t length = strcspn(item, ",");
        TD_TRY(read_item(text, item, length, sizes));
        item += length;
        if (*item == '\0') {
            break;
        }
    }
    for (int d = 0; d < TD_MESH_DIMS; d++) {
        TD_CHECK(sizes[d] != 0 || rest < 0, TD_E_ARG, "the mesh '%.100s': only one size can be *",
                 text);
        rest = sizes[d] == 0 ? d : rest;
        sizes[d] = sizes[d] < 0 ? 1 : sizes[d];
        product *= sizes[d] > 0 ? sizes[d] : 1; /* below 2^64: four sizes of at most 2^16 */
        TD_CHECK(product <= MOST_RANKS, TD_E_ARG, "the mesh '%.100s' has more than %d ranks", text,
                 MOST_RANKS);
    }
    return ranks > 0 ? fit(text, ranks, product, rest, sizes) : TD_OK;
}

/* ---- places ---- */

/* The set of dimensions of "rep+dp", a bit for each. */
static int read_dims(const char *dims)
{
    int set = 0;
    for (const char *at = dims;; at++) {
        size_t length = strcspn(at, "+");
        int d = find_dim(at, length);
        TD_REQUIRE(d >= 0, TD_NOWHERE,
                   "a mesh has no dimension '%.*s'; there are pp, rep, dp and tp, and several are "
                   "written as rep+dp",
                   (int)length, at);
        set |= 1 << d;
        at += length;
        if (*at == '\0') {
            return set;
        }
    }
}

/* A rank's number among those that differ from it in the dimensions of a set. */
static int place_in(const td_mesh *mesh, int set, int rank)
{
    int place = 0, pitch = 1;
    for (int d = TD_MESH_DIMS - 1; d >= 0; d--) {
        if (set & 1 << d) {
            place += rank % mesh->size[d] * pitch;
            pitch *= mesh->size[d];
        }
        rank /= mesh->size[d];
    }
    return place;
}

static int count_of(const td_mesh *mesh, int set)
{
    int count = 1;
    for (int d = 0; d < TD_MESH_DIMS; d++) {
        count *= set & 1 << d ? mesh->size[d] : 1;
    }
    return count;
}

int td_mesh_size(const td_mesh *mesh, const char *dims)
{
    return count_of(mesh, read_dims(dims));
}

int td_mesh_rank(const td_mesh *mesh, const char *dims)
{
    return place_in(mesh, read_dims(dims), td_dist_rank());
}

/* ---- groups ---- */

/* Makes the groups of all ranks along a set, in the order of their first ranks. One is ours. */
static td_status make_groups(td_mesh *mesh, int set, td_group **ours)
{
    int others = EVERY - 1 - set, world = td_dist_world_size(), count = count_of(mesh, set);
    int *ranks = malloc((size_t)count * sizeof *ranks);
    TD_CHECK(ranks != NULL, TD_E_NOMEM, "td_mesh_group: no memory for %d ranks", count);
    td_status status = TD_OK;
    for (int other = 0; other < world / count; other++) {
        int found = 0;
        for (int rank = 0; rank < world; rank++) {
            if (place_in(mesh, others, rank) == other) {
                ranks[found++] = rank;
            }
        }
        td_group *group;
        td_status made = td_group_new(ranks, count, &group);
        *ours = group != NULL ? group : *ours;
        status = made != TD_OK ? made : status;
    }
    free(ranks);
    return status;
}

td_group *td_mesh_group(td_mesh *mesh, const char *dims)
{
    int set = read_dims(dims);
    td_group **group = &mesh->groups[set];
    if (*group == NULL && count_of(mesh, set) == td_dist_world_size()) {
        *group = td_dist_world();
    } else if (*group == NULL && make_groups(mesh, set, group) != TD_OK) {
        return NULL;
    }
    return *group;
}

/* ---- beginning and end ---- */

/* Whether all ranks have read the same sizes. Collective. */
static td_status compare_sizes(const td_mesh *mesh, const char *text)
{
    int world = td_dist_world_size();
    double sums[TD_MESH_DIMS];
    for (int d = 0; d < TD_MESH_DIMS; d++) {
        sums[d] = mesh->size[d];
    }
    TD_TRY(td_all_reduce_numbers(NULL, sums, TD_MESH_DIMS));
    td_status same = TD_OK;
    for (int d = 0; d < TD_MESH_DIMS && same == TD_OK; d++) {
        if (sums[d] != (double)mesh->size[d] * world) {
            same = td_fail(TD_E_MISMATCH, "the ranks have different meshes; this one has '%.100s'",
                           text);
        }
    }
    return td_group_agree(td_dist_world(), same);
}

td_status td_mesh_new(const char *text, td_mesh **mesh)
{
    td_group *world = td_dist_world();
    const char *set = getenv("TANDEM_MESH");
    text = text != NULL ? text : set != NULL && set[0] != '\0' ? set : "dp=*";
    *mesh = calloc(1, sizeof **mesh);
    td_status status = *mesh != NULL ? td_mesh_read(text, td_group_size(world), (*mesh)->size)
                                     : td_fail(TD_E_NOMEM, "no memory for a mesh");
    status = td_group_agree(world, status);
    status = status == TD_OK ? compare_sizes(*mesh, text) : status;
    if (status != TD_OK) {
        free(*mesh);
        *mesh = NULL;
    }
    return status;
}

void td_mesh_free(td_mesh *mesh)
{
    for (int set = 0; mesh != NULL && set < EVERY; set++) {
        if (mesh->groups[set] != td_dist_world()) {
            td_group_free(mesh->groups[set]);
        }
    }
    free(mesh);
}
