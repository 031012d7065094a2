/* The state of an elastic run: kept for the length of a step, and given to those that are behind.
 */
#include "dist/elastic/internal.h"

#include "dist/comm/collectives.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "tensor/extend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what forward changes ---- */

/* Keeps what each Dropout has drawn, or restores it. draws NULL: counts them only. */
static int visit_draws(td_module *net, uint64_t *draws, bool restores)
{
    int count = 0;
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        td_dropout_place *place = td_dropout_place_of(m);
        if (place != NULL && draws != NULL) {
            *(restores ? &place->calls : &draws[count]) = restores ? draws[count] : place->calls;
        }
        count += place != NULL;
    }
    return count;
}

td_status td_elastic_keep_open(td_elastic *e)
{
    td_elastic_kept *k = &e->kept;
    td_module *model = e->options.state->model;
    k->list = td_module_state(model);
    TD_TRY(k->list.count < 0 ? TD_E_NOMEM : TD_OK);
    k->copies = calloc((size_t)k->list.count + 1, sizeof(td_tensor *));
    k->draws = calloc((size_t)visit_draws(model, NULL, false) + 1, sizeof *k->draws);
    bool made = k->copies != NULL && k->draws != NULL;
    for (int i = 0; made && i < k->list.count; i++) {
        if (k->list.items[i].buffer) {
            k->copies[i] = td_clone(k->list.items[i].tensor);
            made = k->copies[i] != NULL;
        }
    }
    return made ? TD_OK : td_fail(TD_E_NOMEM, "td_elastic_open: no memory for running statistics");
}

static void move_kept(td_elastic *e, bool restores)
{
    td_elastic_kept *k = &e->kept;
    for (int i = 0; i < k->list.count; i++) {
        td_tensor *t = k->list.items[i].tensor, *copy = k->copies[i];
        if (copy != NULL) {
            td_copy_(restores ? t : copy, restores ? copy : t);
        }
    }
    (void)visit_draws(e->options.state->model, k->draws, restores);
    *(restores ? td_default_generator() : &k->random) =
        restores ? k->random : *td_default_generator();
}

void td_elastic_keep(td_elastic *e)
{
    move_kept(e, false);
}

void td_elastic_restore(td_elastic *e)
{
    move_kept(e, true);
    td_params_spend(td_parameters(e->options.state->model)); /* gradients that make no step */
}

void td_elastic_keep_close(td_elastic *e)
{
    td_elastic_kept *k = &e->kept;
    for (int i = 0; k->copies != NULL && i < k->list.count; i++) {
        td_free(k->copies[i]);
    }
    free(k->copies);
    free(k->draws);
    td_state_list_free(&k->list);
}

/* ---- the whole state ---- */

/* A checkpoint in memory: a file without a name, which ends with its process. */
typedef struct state_file {
    int fd;
    char path[64];
    void *bytes; /* NULL: not mapped */
    int64_t size;
} state_file;

static td_status state_failed(const char *what)
{
    return td_fail(TD_E_NOMEM, "no memory for the run's state: %s: %s", what, strerror(errno));
}

static td_status map_state(state_file *f)
{
    void *bytes = mmap(NULL, (size_t)f->size, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
    f->bytes = bytes != MAP_FAILED ? bytes : NULL;
    return f->bytes != NULL ? TD_OK : state_failed("mmap");
}

/* size: another rank sends (or takes) the number first. */
static td_status move_bytes(void *bytes, int64_t count, int peer, bool sends)
{
    td_tensor *t = td_borrow(bytes, TD_SHAPE(count), TD_U8, TD_CPU);
    td_status status = t == NULL ? TD_E_NOMEM
                       : sends   ? td_send(NULL, t, peer, NULL)
                                 : td_recv(NULL, t, peer, NULL);
    td_free(t);
    return status;
}

static td_checkpoint_options state_options(const td_elastic *e, const state_file *f)
{
    td_checkpoint_options options = *e->options.state;
    options.path = f->path;
    options.loader = NULL;
    options.background = NULL;
    options.optim = e->options.strategy == NULL ? options.optim : NULL; /* copies.c has its state */
    options.with_random = true;
    return options;
}

static td_status give_state(const td_elastic *e, state_file *f)
{
    const td_elastic_members *m = &e->members;
    struct stat info;
    TD_TRY(td_checkpoint_save_at(state_options(e, f), TD_HERE));
    TD_TRY(fstat(f->fd, &info) == 0 ? TD_OK : state_failed("fstat"));
    f->size = info.st_size;
    TD_TRY(map_state(f));
    for (int rank = m->whole; rank < m->count; rank++) {
        TD_TRY(move_bytes(&f->size, sizeof f->size, rank, true));
        TD_TRY(move_bytes(f->bytes, f->size, rank, true));
    }
    return TD_OK;
}

static td_status take_state(const td_elastic *e, state_file *f)
{
    TD_TRY(move_bytes(&f->size, sizeof f->size, 0, false));
    TD_TRY(f->size > 0 && ftruncate(f->fd, f->size) == 0 ? TD_OK : state_failed("ftruncate"));
    TD_TRY(map_state(f));
    TD_TRY(move_bytes(f->bytes, f->size, 0, false));
    TD_TRY(td_checkpoint_load_at(state_options(e, f), TD_HERE));
    return e->options.adopted != NULL ? e->options.adopted(f->path, e->options.user) : TD_OK;
}

td_status td_elastic_share(td_elastic *e)
{
    const td_elastic_members *m = &e->members;
    if (m->whole == m->count || (e->rank > 0 && e->rank < m->whole)) {
        return TD_OK;
    }
    state_file f = { .fd = memfd_create("tandem state", MFD_CLOEXEC) };
    if (f.fd < 0) {
        return state_failed("memfd_create");
    }
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
    td_status status = e->rank == 0 ? give_state(e, &f) : take_state(e, &f);
    if (f.bytes != NULL) {
        munmap(f.bytes, (size_t)f.size);
    }
    close(f.fd);
    return status;
}
