/* Which processes use a store's file. A file whose users have all ended is stale. Each process has
 * a key that no other key can equal: "\\1user/host/pid/start time/number". */
#ifndef TD_DIST_FILE_USERS_H
#define TD_DIST_FILE_USERS_H

#include "dist/store/table.h"

/* A new key for this process. */
void td_file_user_key(char *key, size_t size);

/* Whether the table has a user that lives, or a user on another host, which cannot be checked. */
bool td_file_users_alive(const td_table *table);

#endif
