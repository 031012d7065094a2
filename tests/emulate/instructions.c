/* The tiles of AMX for processors that have none. What is refused, and with which number of a
 * fault, is what Intel's manual lists at each instruction. */
#include "tests/emulate/instructions.h"

#if TD_X86

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, MAX_ROWS = 16, ROW_BYTES = 64, LANES = 16 };

/* What LDTILECFG reads: 64 bytes. */
typedef struct tile_config {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "LDTILECFG reads 64 bytes");

typedef struct tile {
    int rows, row_bytes;
    bool written; /* since the configuration */
    _Alignas(64) uint8_t data[MAX_ROWS][ROW_BYTES];
} tile;

static _Thread_local bool configured;
static _Thread_local tile tiles[TILES];

__attribute__((format(printf, 2, 3))) static void require(bool holds, const char *format, ...)
{
    if (holds) {
        return;
    }
    va_list args;
    va_start(args, format);
    fputs("emulated tiles: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

/* The tile, which must be one that the configuration has. */
static tile *find(int number, const char *instruction)
{
    require(configured, "%s before a configuration, or after the release (#UD)", instruction);
    require(number >= 0 && number < TILES, "%s of tile %d (#UD)", instruction, number);
    require(tiles[number].rows > 0, "%s of tile %d, which is not configured (#UD)", instruction,
            number);
    return &tiles[number];
}

static tile *find_written(int number, const char *instruction)
{
    tile *t = find(number, instruction);
    require(t->written, "%s reads tile %d, which nobody has written since its configuration",
            instruction, number);
    return t;
}

static bool is_zero(const void *memory, size_t bytes)
{
    const uint8_t *byte = memory;
    for (size_t i = 0; i < bytes; i++) {
        if (byte[i] != 0) {
            return false;
        }
    }
    return true;
}

void td_emulated_tile_release(void)
{
    configured = false;
    memset(tiles, 0, sizeof tiles);
}

void td_emulated_tile_loadconfig(const void *config)
{
    tile_config c;
    memcpy(&c, config, sizeof c);
    td_emulated_tile_release();
    if (c.palette == 0) {
        return;
    }
    require(c.palette == 1, "LDTILECFG of palette %d (#GP)", c.palette);
    require(c.start_row == 0, "LDTILECFG with start_row %d: nobody interrupts these instructions",
            c.start_row);
    require(is_zero(c.reserved, sizeof c.reserved), "LDTILECFG: reserved bytes are not 0 (#GP)");
    for (int i = TILES; i < 16; i++) {
        require(c.rows[i] == 0 && c.row_bytes[i] == 0, "LDTILECFG of tile %d (#GP)", i);
    }
    for (int i = 0; i < TILES; i++) {
        require(c.rows[i] <= MAX_ROWS && c.row_bytes[i] <= ROW_BYTES &&
                    (c.rows[i] == 0) == (c.row_bytes[i] == 0),
                "LDTILECFG: tile %d of %d rows of %d bytes (#GP)", i, c.rows[i], c.row_bytes[i]);
        tiles[i].rows = c.rows[i];
        tiles[i].row_bytes = c.row_bytes[i];
    }
    configured = true;
}

void td_emulated_tile_zero(int number)
{
    tile *t = find(number, "TILEZERO");
    memset(t->data, 0, sizeof t->data);
    t->written = true;
}

void td_emulated_tile_loadd(int number, const void *from, ptrdiff_t stride)
{
    tile *t = find(number, "TILELOADD");
    memset(t->data, 0, sizeof t->data);
    for (int i = 0; i < t->rows; i++) {
        memcpy(t->data[i], (const char *)from + i * stride, (size_t)t->row_bytes);
    }
    t->written = true;
}

void td_emulated_tile_stored(int number, void *to, ptrdiff_t stride)
{
    const tile *t = find_written(number, "TILESTORED");
    for (int i = 0; i < t->rows; i++) {
        memcpy((char *)to + i * stride, t->data[i], (size_t)t->row_bytes);
    }
}

/* Row i of the sum: the even and the odd products are added up apart, first to last, then the two
 * sums, then that to what was there. Lanes beyond the tile hold zeros. */
static TD_TARGET_AVX512 void add_row(tile *sum, const tile *a, const tile *b, int i)
{
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (int k = 0; k < a->row_bytes / 4; k++) {
        int32_t pair;
        memcpy(&pair, a->data[i] + k * 4, sizeof pair);
        __m512i left = _mm512_set1_epi32(pair), right = _mm512_loadu_si512(b->data[k]);
        even = td_emulated_add(even, td_emulated_even(left), td_emulated_even(right));
        odd = td_emulated_add(odd, td_emulated_odd(left), td_emulated_odd(right));
    }
    __m512 both = td_emulated_flush(_mm512_add_ps(even, odd));
    __m512 before = td_emulated_flush(_mm512_loadu_ps(sum->data[i]));
    __mmask16 lanes = (__mmask16)((1u << sum->row_bytes / 4) - 1);
    __m512 after = td_emulated_flush(_mm512_add_ps(before, both));
    _mm512_storeu_ps(sum->data[i], _mm512_maskz_mov_ps(lanes, after));
}

void td_emulated_tile_dpbf16ps(int sum_number, int a_number, int b_number)
{
    tile *sum = find_written(sum_number, "TDPBF16PS");
    const tile *a = find_written(a_number, "TDPBF16PS");
    const tile *b = find_written(b_number, "TDPBF16PS");
    require(sum != a && sum != b && a != b, "TDPBF16PS of tiles %d, %d, %d: one twice (#UD)",
            sum_number, a_number, b_number);
    require(sum->row_bytes % 4 == 0 && a->row_bytes % 4 == 0 && b->row_bytes % 4 == 0 &&
                sum->rows == a->rows && a->row_bytes / 4 == b->rows &&
                sum->row_bytes == b->row_bytes,
            "TDPBF16PS: %d rows of %d bytes += %d of %d times %d of %d (#UD)", sum->rows,
            sum->row_bytes, a->rows, a->row_bytes, b->rows, b->row_bytes);
    for (int i = 0; i < sum->rows; i++) {
        add_row(sum, a, b, i);
    }
}

#endif
