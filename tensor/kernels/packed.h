/* An optimizer's averages in fewer bits, as every device packs them.
 *
 * bf16: the upper half of the f32. u8: blocks of 16 averages, a f32 and 16 codes. The f32 is the
 * block's largest magnitude, and a code c is the fourth root of how large an average is next to it:
 * (c / 127)^4, c with the average's sign, or (c / 254)^4 where none is negative, which the f32's
 * own sign says. So the largest averages are kept to 2 or 3 %, and the smallest that is not 0 is
 * 4e-9 of the largest or less. (Dettmers et al. 2022, "8-bit optimizers via block-wise
 * quantization", have larger blocks, and a table in the formula's place.) 16 f32 are the cache line
 * on which every parameter and every rank's window begins, so no block is ever cut.
 *
 * Rounding is stochastic: up with the probability that keeps the mean. Rounded to the nearest, an
 * average that a step changes by less than half the distance of two codes would never move. What
 * was unpacked is packed again without loss. */
#pragma once

#include "tensor/dtype.h"
#include "tensor/kernels/philox.h"

#include <math.h>
#include <string.h>

/* Compiled for the instruction set of the loop that it is in. */
#ifdef __CUDACC__
#define TD_PACKED_INLINE TD_EVERYWHERE
#else
#define TD_PACKED_INLINE static inline __attribute__((always_inline))
#endif

enum { TD_PACK = 16, TD_PACK_BYTES = TD_PACK + 4 };

/* Bytes of 16 averages, packed as TD_BF16 or TD_U8. */
TD_PACKED_INLINE int td_packed_bytes(td_dtype packed)
{
    return packed == TD_BF16 ? 2 * TD_PACK : TD_PACK_BYTES;
}

/* (c / levels)^4 */
TD_PACKED_INLINE float td_code_value(float code, float levels)
{
    float root = code / levels;
    return (root * root) * (root * root);
}

TD_PACKED_INLINE void td_unpack_codes(float *to, const uint8_t *from)
{
    float largest, code[TD_PACK];
    memcpy(&largest, from, sizeof largest);
    bool no_signs = signbit(largest);
    for (int i = 0; i < TD_PACK; i++) {
        int byte = from[sizeof largest + i];
        code[i] = (float)(no_signs || byte < 128 ? byte : byte - 256);
    }
    float levels = no_signs ? 254.0f : 127.0f, unit = fabsf(largest);
    for (int i = 0; i < TD_PACK; i++) {
        float value = unit * td_code_value(code[i], levels);
        to[i] = code[i] < 0.0f ? -value : value;
    }
}

/* draw[i] >> shift: 16 random bits. */
TD_PACKED_INLINE void td_pack_codes(uint8_t *to, const float *from, const uint32_t *draw, int shift)
{
    float largest = 0.0f, least = 0.0f;
    for (int i = 0; i < TD_PACK; i++) {
        float size = fabsf(from[i]);
        largest = size > largest ? size : largest;
        least = from[i] < least ? from[i] : least;
    }
    bool no_signs = least == 0.0f;
    float scale = no_signs ? -largest : largest, levels = no_signs ? 254.0f : 127.0f;
    float unit = largest > 0.0f ? largest : 1.0f;
    int code[TD_PACK];
    for (int i = 0; i < TD_PACK; i++) {
        float part = fabsf(from[i]) / unit, root = sqrtf(sqrtf(part)) * levels;
        float whole = root < levels ? root : levels; /* of NaN, too */
        float low = (float)(int)whole;
        float below = td_code_value(low, levels), above = td_code_value(low + 1.0f, levels);
        /* So far from 0 and 1 that no rounding error of the root decides. */
        float chance = ((float)(int)((draw[i] >> shift & 0xffffu) >> 4) + 0.5f) / 4096.0f;
        int up = part - below > chance * (above - below) && low < levels;
        code[i] = from[i] < 0.0f ? -((int)low + up) : (int)low + up;
    }
    memcpy(to, &scale, sizeof scale);
    for (int i = 0; i < TD_PACK; i++) { /* apart: bytes might be any of the other arrays */
        to[sizeof scale + i] = (uint8_t)code[i];
    }
}

TD_PACKED_INLINE void td_unpack_halves(float *to, const uint8_t *from)
{
    for (int i = 0; i < TD_PACK; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

TD_PACKED_INLINE void td_pack_halves(uint8_t *to, const float *from, const uint32_t *draw,
                                     int shift)
{
    for (int i = 0; i < TD_PACK; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        bool is_nan = !finite && (bits & 0x7fffffu) != 0;
        bits = finite ? bits + (draw[i] >> shift & 0xffffu) : is_nan ? bits | 0x400000u : bits;
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

/* 16 averages. */
TD_PACKED_INLINE void td_packed_get(td_dtype packed, float *to, const uint8_t *from)
{
    if (packed == TD_BF16) {
        td_unpack_halves(to, from);
    } else {
        td_unpack_codes(to, from);
    }
}

TD_PACKED_INLINE void td_packed_put(td_dtype packed, uint8_t *to, const float *from,
                                    const uint32_t *draw, int shift)
{
    if (packed == TD_BF16) {
        td_pack_halves(to, from, draw, shift);
    } else {
        td_pack_codes(to, from, draw, shift);
    }
}
