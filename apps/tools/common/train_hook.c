/* The option --comm-hook: reads it, and describes it. */
#include "apps/tools/common/train.h"

#include "dist/ddp/codec.h"

enum { PLAIN_STEPS = 1000, MOST_RANK = 1024, MOST_STEPS = 1000000000 };
static const char powersgd[] = "powersgd";

/* ---- the option ---- */

bool train_hook_read(const char *text, train_hook *read)
{
    static const char *const plain[] = { "none", "bf16", "fp16" };
    char copy[64], why[128], *rest = copy;
    train_hook hook = { .name = powersgd };
    int64_t rank = 1;
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, plain[i]) == 0) {
            *read = (train_hook){ .name = i > 0 ? plain[i] : NULL };
            return true;
        }
    }
    snprintf(copy, sizeof copy, "%s", text);
    const char *name = strsep(&rest, ":"), *of_rank = strsep(&rest, ":"),
               *start = strsep(&rest, ":");
    hook.start = PLAIN_STEPS;
    bool fits = strlen(text) < sizeof copy && rest == NULL && strcmp(name, powersgd) == 0 &&
                (of_rank == NULL || cli_read_int(of_rank, 1, MOST_RANK, &rank, why, sizeof why)) &&
                (start == NULL || cli_read_int(start, 1, MOST_STEPS, &hook.start, why, sizeof why));
    hook.rank = (int)rank;
    *read = fits ? hook : *read;
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
