/* The kinds of collectives: what each moves, and names for reports. */
#include "dist/comm/watchdog.h"

const td_kind *td_kind_of(td_collective_kind kind)
{
    static const td_kind kinds[] = {
        [TD_COLLECTIVE_ALL_REDUCE] = { "all_reduce", TD_EACH_RANK, TD_EACH_RANK, .reduces = true },
        [TD_COLLECTIVE_BROADCAST] = { "broadcast", .gives = TD_ROOT, .takes = TD_EACH_RANK },
        [TD_COLLECTIVE_REDUCE] = { "reduce", TD_EACH_RANK, TD_ROOT, .reduces = true },
        [TD_COLLECTIVE_ALL_GATHER] = { "all_gather", TD_EACH_RANK, TD_EACH_RANK,
                                       .takes_all = true },
        [TD_COLLECTIVE_REDUCE_SCATTER] = { "reduce_scatter", TD_EACH_RANK, TD_EACH_RANK,
                                           .gives_all = true, .reduces = true },
        [TD_COLLECTIVE_GATHER] = { "gather", TD_EACH_RANK, TD_ROOT, .takes_all = true },
        [TD_COLLECTIVE_SCATTER] = { "scatter", TD_ROOT, TD_EACH_RANK, .gives_all = true },
        [TD_COLLECTIVE_ALL_TO_ALL] = { "all_to_all", TD_EACH_RANK, TD_EACH_RANK, .gives_all = true,
                                       .takes_all = true },
        [TD_COLLECTIVE_SEND] = { "send", .gives = TD_EACH_RANK },
        [TD_COLLECTIVE_RECV] = { "recv", .takes = TD_EACH_RANK },
        [TD_COLLECTIVE_BARRIER] = { .name = "barrier" },
        [TD_COLLECTIVE_MEMORY] = { .name = "group_memory" },
        [TD_COLLECTIVE_REPLAY] = { .name = "captured step" },
        [TD_COLLECTIVE_COUNT] = { .name = "unknown" },
    };
    return &kinds[kind < TD_COLLECTIVE_COUNT ? kind : TD_COLLECTIVE_COUNT];
}

const char *td_reduction_name(td_reduction op)
{
    static const char *const names[] = { "sum", "average", "min", "max", "product" };
    return op >= TD_SUM && op <= TD_PRODUCT ? names[op] : "unknown reduction";
}

static int pieces(td_who who, bool all, const td_collective *c, int rank, int size)
{
    bool takes_part = who == TD_EACH_RANK || (who == TD_ROOT && rank == c->peer);
    return takes_part ? (all ? size : 1) : 0;
}

int td_pieces_given(const td_collective *c, int rank, int size)
{
    const td_kind *kind = td_kind_of(c->kind);
    return pieces(kind->gives, kind->gives_all, c, rank, size);
}

int td_pieces_taken(const td_collective *c, int rank, int size)
{
    const td_kind *kind = td_kind_of(c->kind);
    return pieces(kind->takes, kind->takes_all, c, rank, size);
}
