/* Values travel as bf16 (td_zero_options.wire). A unit's matrices, which travel as bf16, lie at the
 * unit's beginning, and its vectors, which travel as f32, at the end. So every rank's piece is
 * bf16, except that the last rank's piece ends with the vectors. All pieces travel in as many bytes
 * as the last piece needs.
 *
 * The pieces arrive in the last part of the slot, and are spread as f32 over the whole slot, from
 * the first piece to the last. Of three ranks, before and after the first piece is spread:
 *
 *     |                  | p0 | p1 | p2 |
 *     | piece 0 as f32   | .. | p1 | p2 |
 *
 * A piece is copied to slot->packed first, so spreading it may overwrite it, and what is written
 * never reaches the next piece, as long as vectors fill at most half of a piece. */
#include "dist/shard/shard.h"

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

/* `count` elements from a byte of memory on, by value. */
static td_tensor elements_at(const td_tensor *memory, int64_t byte, int64_t count, td_dtype dtype)
{
    td_tensor view = *memory;
    int64_t begin = memory->offset * (int64_t)td_dtype_size(memory->dtype) + byte;
    view.dtype = dtype;
    view.offset = begin / (int64_t)td_dtype_size(dtype);
    view.shape[0] = count;
    return view;
}

/* Between rank r's piece and `packed`, where it is as it travels. */
static void wire_convert(const td_shard_unit *u, int r, td_tensor *piece, const td_tensor *packed,
                         bool packs)
{
    int64_t narrow = narrow_of(u, r), wide = u->count / u->sharding->ranks - narrow;
    const td_tensor plain[2] = { td_ddp_stretch(piece, 0, narrow),
                                 td_ddp_stretch(piece, narrow, wide) };
    const td_tensor travels[2] = {
        elements_at(packed, 0, narrow, TD_BF16),
        elements_at(packed, narrow * (int64_t)sizeof(td_bf16), wide, TD_F32),
    };
    for (int k = 0; k < 2; k++) {
        td_tensor to = packs ? travels[k] : plain[k];
        td_copy_(&to, packs ? &plain[k] : &travels[k]);
    }
}

td_tensor td_shard_pack(const td_shard_unit *u, const td_slot *slot)
{
    td_tensor own = td_shard_own(u);
    wire_convert(u, u->sharding->rank, &own, slot->packed, true);
    return elements_at(slot->packed, 0, td_shard_wire_bytes(u), TD_U8);
}

td_tensor td_shard_packed_place(const td_shard_unit *u, const td_slot *slot)
{
    int64_t bytes = u->sharding->ranks * td_shard_wire_bytes(u);
    return elements_at(slot->memory, u->count * (int64_t)sizeof(float) - bytes, bytes, TD_U8);
}

void td_shard_unpack(const td_shard_unit *u, const td_slot *slot)
{
    td_tensor place = td_shard_packed_place(u, slot);
    int64_t count = u->count / u->sharding->ranks, bytes = td_shard_wire_bytes(u);
    td_tensor packed = elements_at(slot->packed, 0, bytes, TD_U8);
    for (int r = 0; r < u->sharding->ranks; r++) {
        td_tensor from = td_ddp_stretch(&place, r * bytes, bytes);
        td_tensor piece = td_ddp_stretch(slot->memory, r * count, count);
        td_copy_(&packed, &from);
        wire_convert(u, r, &piece, &packed, false);
    }
}
