/* The variables TANDEM_... of the environment (docs/environment.md). */
#pragma once

/* Says on stderr which variables TANDEM_... are unknown, and which is probably meant. Of the
 * processes of a job the first of a host speaks. */
void td_check_environment(void);
