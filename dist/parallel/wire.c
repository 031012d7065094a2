/* As what values travel (td_ddp_options.wire). A unit's matrices lie at its beginning, so each
 * rank's piece is bf16, and only the last rank's has vectors behind them, f32. All pieces travel in
 * as many bytes as the last. They come to the end of the slot, behind where they go, and are spread
 * from the first to the last: what is written never reaches what is still to be read, as long as
 * vectors fill at most half of a piece. */
#include "dist/parallel/shard.h"

#include "tensor/extend.h"
#include "tensor/f16.h"
#include "tensor/storage.h"

#include <string.h>

/* Elements of rank r's piece that travel as bf16. */
static int64_t narrow_of(const td_shard_unit *u, int r)
{
    int ranks = u->sharding->ranks;
    int64_t piece = u->count / ranks, wide = u->count - u->narrow;
    return r == ranks - 1 ? piece - wide : piece;
}

int64_t td_shard_wire_bytes(const td_shard_unit *u)
{
    int64_t wide = u->count - u->narrow;
    return u->narrow > 0 ? (u->count / u->sharding->ranks + wide) * (int64_t)sizeof(td_bf16) : 0;
}

/* `count` bytes of memory, by value. */
static td_tensor bytes_at(const td_tensor *memory, int64_t begin, int64_t count)
{
    td_tensor view = *memory;
    view.offset = memory->offset * (int64_t)td_dtype_size(memory->dtype) + begin;
    view.dtype = TD_U8;
    view.shape[0] = count;
    return view;
}

td_tensor td_shard_pack(const td_shard_unit *u, const td_slot *slot)
{
    td_tensor own = td_shard_own(u);
    int64_t narrow = narrow_of(u, u->sharding->rank);
    const float *from = td_ptr(&own);
    td_bf16 *to = td_ptr(slot->packed);
    for (int64_t i = 0; i < narrow; i++) {
        to[i] = td_f32_to_bf16(from[i]);
    }
    memcpy(to + narrow, from + narrow, (size_t)(td_numel(&own) - narrow) * sizeof *from);
    return bytes_at(slot->packed, 0, td_shard_wire_bytes(u));
}

td_tensor td_shard_packed_place(const td_shard_unit *u, const td_slot *slot)
{
    int64_t bytes = u->sharding->ranks * td_shard_wire_bytes(u);
    return bytes_at(slot->memory, u->count * (int64_t)sizeof(float) - bytes, bytes);
}

/* From the first to the last. `from` may lie in the same memory, behind `to`. */
static void widen(float *to, const char *from, int64_t count)
{
    td_bf16 block[256];
    for (int64_t i = 0, n; i < count; i += n) {
        n = count - i < 256 ? count - i : 256;
        memcpy(block, from + i * (int64_t)sizeof *block, (size_t)n * sizeof *block);
        for (int64_t k = 0; k < n; k++) {
            to[i + k] = td_bf16_to_f32(block[k]);
        }
    }
}

void td_shard_unpack(const td_shard_unit *u, const td_slot *slot)
{
    td_tensor place = td_shard_packed_place(u, slot);
    const char *from = td_ptr(&place);
    float *to = td_ptr(slot->memory);
    int64_t piece = u->count / u->sharding->ranks;
    for (int r = 0; r < u->sharding->ranks; r++) {
        int64_t narrow = narrow_of(u, r);
        widen(to, from, narrow);
        memmove(to + narrow, from + narrow * (int64_t)sizeof(td_bf16),
                (size_t)(piece - narrow) * sizeof *to);
        to += piece;
        from += td_shard_wire_bytes(u);
    }
}
