/* Writes the hashes of a run's steps. */
#include "apps/tools/common/hashes.h"
#include "apps/tools/common/log.h"

#include "autograd/tape.h"
#include "nn/io/fingerprint.h"
#include "tensor/extend.h"
#include "tensor/system/folders.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hashes {
    char path[4096];
    FILE *out;
    int64_t step;
    td_status seen; /* the first failure while operations were hashed */
};

void hashes_path(const char *dir, int rank, char path[4096])
{
    if (rank > 0) {
        snprintf(path, 4096, "%s/hashes.rank%d.tsv", dir, rank);
    } else {
        snprintf(path, 4096, "%s/hashes.tsv", dir);
    }
}

static td_status hashes_fail(const hashes *h)
{
    return td_fail(TD_E_IO, "cannot write %s: %s", h->path, strerror(errno));
}

td_status hashes_open(const char *dir, int64_t done, hashes **out)
{
    hashes *h = *out = calloc(1, sizeof *h);
    TD_CHECK(h != NULL, TD_E_NOMEM, "no memory for hashes");
    TD_TRY(td_make_folders(dir));
    hashes_path(dir, td_dist_rank(), h->path);
    long kept = log_kept_bytes(h->path, done);
    h->out = fopen(h->path, "a");
    bool cut = h->out != NULL && ftruncate(fileno(h->out), kept) == 0;
    return cut ? TD_OK : hashes_fail(h);
}

static void write_line(const hashes *h, const char *what, const char *name, uint64_t value)
{
    fprintf(h->out, "%" PRId64 "\t%s\t%s\t%016" PRIx64 "\n", h->step, what, name, value);
}

/* Writes a line for each, and frees the list. status: how it was made. */
static td_status write_list(const hashes *h, const char *what, td_fingerprints *f, td_status status)
{
    for (int i = 0; status == TD_OK && i < f->count; i++) {
        write_line(h, what, f->items[i].name, f->items[i].value);
    }
    td_fingerprints_free(f);
    return status;
}

static void see_result(const td_tensor *t, const char *op, const char *module, int number,
                       void *user)
{
    hashes *h = user;
    char name[512], input[32] = "";
    uint64_t value = 0;
    td_status status =
        td_fingerprint_tensor(td_fingerprint_name("", t->dtype, td_shape_of(t)), t, &value);
    h->seen = h->seen == TD_OK ? status : h->seen;
    if (number >= 0) {
        snprintf(input, sizeof input, ", input %d", number);
    }
    snprintf(name, sizeof name, "%s, %s%s", op, module != NULL ? module : "no module", input);
    write_line(h, number >= 0 ? "backward" : "forward", name, value);
}

td_status hashes_before(hashes *h, int64_t step, const td_checkpoint_options *state)
{
    char ranks[32];
    td_fingerprints f;
    h->step = step;
    td_status status = td_fingerprint_at(&f, *state, TD_HERE);
    snprintf(ranks, sizeof ranks, "%d ranks", td_dist_world_size());
    write_line(h, "step", ranks, f.all);
    td_observe_results(see_result, h);
    return write_list(h, "before", &f, status);
}

td_status hashes_gradients(hashes *h, const td_params *params)
{
    td_fingerprints f;
    td_observe_results(NULL, NULL);
    TD_TRY(write_list(h, "gradient", &f, td_fingerprint_gradients(&f, params)));
    return h->seen;
}

td_status hashes_after(hashes *h, const td_checkpoint_options *state)
{
    td_fingerprints f;
    TD_TRY(write_list(h, "after", &f, td_fingerprint_at(&f, *state, TD_HERE)));
    return fflush(h->out) == 0 && !ferror(h->out) ? TD_OK : hashes_fail(h);
}

void hashes_close(hashes *h)
{
    if (h != NULL) {
        td_observe_results(NULL, NULL); /* a step may have failed */
    }
    if (h != NULL && h->out != NULL) {
        fclose(h->out);
    }
    free(h);
}
