/* The products of attention's tiles: 64 keys by 64 queries at most. Scores lie transposed,
 * [key][query], so that a query is a lane of vectors. Factors are f32, f64 or bf16; sums, and tiles
 * of scores, are f64 if factors are, otherwise f32.
 *
 * The causal mask of a tile is a number, `shift`: query q reads key k if k <= q + shift, both
 * counted within the tile. What the mask hides is computed in steps, of which whole ones are
 * skipped. */
#pragma once

#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/loops.h"

enum { TD_TILE = TD_ATTENTION_TILE };

typedef struct td_tiles {
    const td_gemm_kernels *kernels;
    const td_loops *loops;     /* of the sums' type */
    td_dtype dtype;            /* of factors */
    int64_t size, sum;         /* bytes of an element of a factor, of a sum */
    int64_t depth;             /* bf16: sums have a multiple of it of terms; otherwise 1 */
    int64_t step;              /* in which a tile is computed that the mask cuts */
    int64_t width;             /* h */
    int64_t of_tile[TD_TILE];  /* where its rows lie, in bytes */
    int64_t of_lanes[TD_TILE]; /* the rows of a tile that is read transposed */
    int64_t of_half[TD_TILE];  /* the rows of a tile in bf16 */
    int64_t of_left[TD_TILE];  /* the rows of a packed left factor */
    int64_t of_sums[TD_TILE];  /* rows of h sums */
} td_tiles;

/* Factors of products. Rows of the left one lie anywhere; the right one has rows of panels. */
typedef struct td_left {
    const char *at;
    const int64_t *rows; /* bytes */
    int64_t step;        /* elements from column to column */
} td_left;
typedef struct td_right {
    const char *at;
    int64_t row;   /* elements from row to row */
    int64_t panel; /* bytes from panel to panel */
} td_right;

/* Rows that products are written or added to. */
typedef struct td_sink {
    char *at;
    const int64_t *rows; /* bytes */
} td_sink;

/* What is computed: `keys` by `queries` of a tile. */
typedef struct td_tile_part {
    int64_t keys, queries;
    int64_t shift; /* of the mask; TD_TILE: all keys are read */
} td_tile_part;

void td_tiles_start(td_tiles *tiles, td_dtype dtype, int64_t width);

/* Matrices of `count` rows of h elements, `row` bytes apart, as factors. They are used where they
 * lie if their type allows it, otherwise packed into memory from `space`, which may only measure.
 */
td_left td_tiles_left(const td_tiles *tiles, const char *from, const int64_t *rows, int64_t count,
                      td_conv_space *space);
td_right td_tiles_right(const td_tiles *tiles, const char *from, int64_t row, int64_t count,
                        td_conv_space *space);
/* Writes at most 64 rows as columns into td_tiles_turned_bytes; columns beyond them are zero. And
 * what was written there, as a factor. */
int64_t td_tiles_turned_bytes(const td_tiles *tiles);
void td_tiles_turn(const td_tiles *tiles, char *to, const char *from, int64_t row, int64_t count);
td_right td_right_turned(const td_tiles *tiles, const char *turned);
/* The factor's rows from `first` on, a multiple of 64. */
td_left td_left_from(td_left factor, int64_t first);
td_right td_right_from(const td_tiles *tiles, td_right factor, int64_t first);
/* A row of h sums to a row of the factors' type. */
void td_tiles_put(const td_tiles *tiles, char *to, char *sums, bool accumulate);

/* A tile of sums as a left factor, by keys or by queries; of bf16 rounded into `room`, of 64 x 64.
 */
td_left td_tiles_by_keys(const td_tiles *tiles, const char *tile, char *room, td_tile_part part);
td_left td_tiles_by_queries(const td_tiles *tiles, const char *tile, char *room, td_tile_part part);

/* tile = keys turned, for whole groups of TD_ATTENTION_LANES queries */
void td_tiles_scores(const td_tiles *tiles, char *tile, td_left keys, td_right turned,
                     td_tile_part part);
/* to (queries x h) = or += p rows, where p is by queries, and the rows are those of the keys */
void td_tiles_sum_keys(const td_tiles *tiles, td_sink to, td_left p, td_right rows,
                       td_tile_part part, bool accumulate);
/* to (keys x h) = or += p rows, where p is by keys, and the rows are those of the queries */
void td_tiles_sum_queries(const td_tiles *tiles, td_sink to, td_left p, td_right rows,
                          td_tile_part part, bool accumulate);
