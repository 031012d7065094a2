/* The option --comm-hook: reads it, and describes it. */
#include "apps/tools/common/train.h"

#include "apps/tools/common/ranks.h"
#include "dist/ddp/codec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN_STEPS = 1000, MOST_RANK = 1024, MOST_STEPS = 1000000000 };
static const char powersgd[] = "powersgd";

/* ---- the option ---- */

bool train_hook_read(const char *text, train_hook *read)
{
    static const char *const hooks[] = { "none", "bf16", "fp16", powersgd };
    enum { NONE = 0, POWERSGD = 3 };
    char copy[64], why[128], *rest = copy;
    int64_t rank = 1, start = PLAIN_STEPS;
    int hook = POWERSGD;
    snprintf(copy, sizeof copy, "%s", text);
    const char *name = strsep(&rest, ":");
    const char *rank_text = strsep(&rest, ":"), *start_text = strsep(&rest, ":");
    while (hook >= NONE && strcmp(name, hooks[hook]) != 0) {
        hook--;
    }
    bool plain = hook >= NONE && hook != POWERSGD && rank_text == NULL;
    bool fits =
        strlen(text) < sizeof copy && rest == NULL && (plain || hook == POWERSGD) &&
        (rank_text == NULL || cli_read_int(rank_text, 1, MOST_RANK, &rank, why, sizeof why)) &&
        (start_text == NULL || cli_read_int(start_text, 1, MOST_STEPS, &start, why, sizeof why));
    if (fits) {
        read->name = hook != NONE ? hooks[hook] : NULL;
        read->rank = plain ? 0 : (int)rank;
        read->start = plain ? 0 : start;
    }
    return fits;
}

bool train_hook_fits(const char *text)
{
    return train_hook_read(text, &(train_hook){ 0 });
}

/* ---- what a run says ---- */

static int64_t optimizer_steps(const train_run *r)
{
    int64_t group = train_group_size(r), batches = td_loader_batches(r->loader);
    return r->args.epochs * ((batches + group - 1) / group);
}

void train_hook_tell(const train_run *r)
{
    const train_hook *h = &r->ranks.hook;
    if (h->name == NULL) {
        return;
    }
    if (!td_is_ddp(r->net)) {
        td_printf_rank0("--comm-hook: there is one process, and no gradients travel\n");
    } else if (h->rank == 0) {
        td_printf_rank0("gradients travel as %s\n", h->name);
    } else {
        int64_t steps = optimizer_steps(r);
        td_printf_rank0("gradients travel as PowerSGD's factors of rank %d after %" PRId64
                        " plain steps",
                        h->rank, h->start);
        if (steps <= h->start) {
            td_printf_rank0(", and this run has only %" PRId64 ": see --comm-hook %s:RANK:START",
                            steps, powersgd);
        }
        td_printf_rank0("\n");
    }
}

void train_hook_resume(const train_run *r)
{
    char text[256];
    train_hook then = { 0 };
    bool same = td_checkpoint_metadata(r->args.files.resume, "option.comm-hook", text,
                                       sizeof text) == TD_OK &&
                train_hook_read(text, &then) && then.rank == r->ranks.hook.rank;
    if (td_is_ddp(r->net) && r->ranks.hook.rank > 0 && !same) {
        td_printf_rank0("PowerSGD begins again: %s is of a run without it, or of another rank\n",
                        r->args.files.resume);
    }
}
