/* --comm-hook: in which form gradients travel between the processes. */
#ifndef APPS_TOOLS_TRAIN_HOOK_H
#define APPS_TOOLS_TRAIN_HOOK_H

#include "apps/tools/common/train.h"

/* Adds the option; every lesson with several processes has it. */
void train_hook_option(train_args *args);

/* Sets options' hook from the option's text. false: it is none of its forms. */
bool train_hook_read(const char *text, td_ddp_options *options);

/* One line on rank 0, if there is something to say. With loader and net made. */
void train_hook_tell(const train_run *r);

/* What the hook remembers, for a checkpoint: PowerSGD's factors and errors; else nothing. Every
 * rank calls these, at the same place. To save: it goes into notes->extra. To load: the same, if
 * the checkpoint has what fits (a hook of the same form, as many ranks); otherwise the hook begins
 * anew, and rank 0 says so. */
td_status train_hook_to_save(const train_run *r, train_notes *notes);
td_status train_hook_to_load(const train_run *r, const char *path, train_notes *notes);

#endif
