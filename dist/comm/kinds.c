/* The kinds of collectives: what each moves, and names for reports. */
#include "dist/comm/watchdog.h"

const td_kind *td_kind_of(td_collective_kind kind)
{
    /* name, who gives, who takes, a piece for each rank is given, is taken, pieces are reduced */
    static const td_kind kinds[] = {
        [TD_COLLECTIVE_ALL_REDUCE] = { "all_reduce", TD_EACH_RANK, TD_EACH_RANK, false, false,
                                       true },
        [TD_COLLECTIVE_BROADCAST] = { "broadcast", TD_ROOT, TD_EACH_RANK, false, false, false },
        [TD_COLLECTIVE_REDUCE] = { "reduce", TD_EACH_RANK, TD_ROOT, false, false, true },
        [TD_COLLECTIVE_ALL_GATHER] = { "all_gather", TD_EACH_RANK, TD_EACH_RANK, false, true,
                                       false },
        [TD_COLLECTIVE_REDUCE_SCATTER] = { "reduce_scatter", TD_EACH_RANK, TD_EACH_RANK, true,
                                           false, true },
        [TD_COLLECTIVE_GATHER] = { "gather", TD_EACH_RANK, TD_ROOT, false, true, false },
        [TD_COLLECTIVE_SCATTER] = { "scatter", TD_ROOT, TD_EACH_RANK, true, false, false },
        [TD_COLLECTIVE_ALL_TO_ALL] = { "all_to_all", TD_EACH_RANK, TD_EACH_RANK, true, true,
                                       false },
        [TD_COLLECTIVE_SEND] = { "send", TD_EACH_RANK, TD_NO_RANK, false, false, false },
        [TD_COLLECTIVE_RECV] = { "recv", TD_NO_RANK, TD_EACH_RANK, false, false, false },
        [TD_COLLECTIVE_BARRIER] = { "barrier", TD_NO_RANK, TD_NO_RANK, false, false, false },
        [TD_COLLECTIVE_MEMORY] = { "group_memory", TD_NO_RANK, TD_NO_RANK, false, false, false },
        [TD_COLLECTIVE_REPLAY] = { "captured step", TD_NO_RANK, TD_NO_RANK, false, false, false },
        [TD_COLLECTIVE_COUNT] = { "unknown", TD_NO_RANK, TD_NO_RANK, false, false, false },
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
