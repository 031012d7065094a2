/* Which processes use a store's file, so that a file whose users have all ended is known as stale.
 * Each has a key that no user's own key can be: "\\1user/host/pid/start time/number". */
#ifndef TD_DIST_FILE_USERS_H
#define TD_DIST_FILE_USERS_H

#include "dist/table.h"

/* A new one for this process. */
void td_file_user_key(char *key, size_t size);

/* Whether the table has a user that lives, or one on another host, which cannot be seen. */
bool td_file_users_alive(const td_table *table);

#endif
