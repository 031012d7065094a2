/* The store of a group that is being made: a wait ends at once when one of the group's ranks has
 * died, not only at the time-out. */
#ifndef TD_DIST_WATCHED_STORE_H
#define TD_DIST_WATCHED_STORE_H

#include "dist/rendezvous.h"

/* Opens a store over base. It watches `count` ranks of the world; ranks NULL: all. Closing it
 * leaves base open. */
td_status td_watched_store_open(td_store *base, const td_rendezvous_result *met, const int *ranks,
                                int count, td_store **store);

/* Tells the other ranks why there will be no group; their waits fail with this cause. false: a
 * cause was told before. */
bool td_watched_store_tell(td_store *store, td_status status, const char *cause);

#endif
