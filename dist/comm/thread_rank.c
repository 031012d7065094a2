/* Which rank the calling thread is, where ranks are threads. */
#include "dist/comm/thread_rank.h"

static _Thread_local td_thread_rank *now;

td_thread_rank *td_thread_rank_now(void)
{
    return now;
}

void td_thread_rank_set(td_thread_rank *rank)
{
    now = rank;
}
