#include "tensor/tune/tune.h"
#include "tensor/clock.h"

#include "tensor/tune/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A problem of the first step. */
typedef struct note {
    char key[TD_PLAN_KEY_MAX];
    td_autotune_fn choose;
    void *problem;
} note;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool on;
static atomic_uint round_now;
static td_plan_cache *choices; /* NULL: not made yet */
static note *notes;
static int count, capacity;
static bool fits = true; /* choices that were made here, or taken of which some have been used */

/* Behind this the rest is left to the rules: other ranks wait, and not for ever. */
static const double MOST_SECONDS = 120;

/* ---- under the lock ---- */

static td_plan_cache *new_choices(void)
{
    return td_plan_cache_new("autotune");
}

static void forget_notes(void)
{
    for (int i = 0; i < count; i++) {
        free(notes[i].problem);
    }
    free(notes);
    notes = NULL;
    count = capacity = 0;
}

/* Takes over `made`, or NULL: none are made. */
static void set_choices(td_plan_cache *made, bool fit)
{
    td_plan_cache_free(choices);
    choices = made;
    fits = fit;
    forget_notes();
    atomic_fetch_add(&round_now, 1);
}

/* Short of memory, the problem stays one for the rules. */
static void add_note(const char *key, td_autotune_fn choose, const void *problem, size_t size)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(notes[i].key, key) == 0) {
            return;
        }
    }
    if (count == capacity) {
        int more = capacity == 0 ? 64 : 2 * capacity;
        note *grown = realloc(notes, (size_t)more * sizeof *grown);
        if (grown == NULL) {
            return;
        }
        notes = grown;
        capacity = more;
    }
    note *n = &notes[count];
    size_t length = strlen(key);
    if (length >= sizeof n->key || (n->problem = malloc(size)) == NULL) {
        return;
    }
    memcpy(n->key, key, length + 1);
    memcpy(n->problem, problem, size);
    n->choose = choose;
    count++;
}

/* ---- for all ---- */

void td_set_autotune(bool wanted)
{
    pthread_mutex_lock(&lock);
    atomic_store(&on, wanted);
    set_choices(NULL, true);
    pthread_mutex_unlock(&lock);
}

void td_autotune_first_step(void)
{
    pthread_mutex_lock(&lock);
    forget_notes();
    pthread_mutex_unlock(&lock);
}

bool td_autotune(void)
{
    return atomic_load_explicit(&on, memory_order_relaxed);
}

unsigned td_autotune_round(void)
{
    return atomic_load_explicit(&round_now, memory_order_relaxed);
}

char *td_autotune_choice(const char *key, size_t *bytes, td_autotune_fn choose, const void *problem,
                         size_t size)
{
    char *copy = NULL;
    pthread_mutex_lock(&lock);
    const char *text =
        td_autotune() && choices != NULL ? td_plan_cache_get(choices, key, bytes) : NULL;
    if (text != NULL) {
        fits = true;
        copy = malloc(*bytes + 1);
        if (copy != NULL) {
            memcpy(copy, text, *bytes + 1);
        }
    } else if (td_autotune() && (choices == NULL || !fits)) {
        add_note(key, choose, problem, size);
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

/* Without the lock: devices use the same functions while they choose. No step runs, so that the
 * notes stay as they are. */
static td_status choose_all(td_plan_cache *made, td_autotune_stats *stats)
{
    td_status status = TD_OK;
    double begin = td_clock();
    for (int i = 0; status == TD_OK && i < count; i++) {
        if (td_clock() - begin > MOST_SECONDS) {
            stats->left = count - i;
            break;
        }
        size_t bytes;
        bool timed = true;
        char *text = notes[i].choose(notes[i].problem, &bytes, &timed);
        if (text != NULL) {
            status = td_plan_cache_put(made, notes[i].key, text, bytes);
            stats->timed += timed;
        }
        free(text);
    }
    return status;
}

td_status td_autotune_choose(td_autotune_stats *stats)
{
    td_autotune_stats ignored, *f = stats != NULL ? stats : &ignored;
    *f = (td_autotune_stats){ 0 };
    pthread_mutex_lock(&lock);
    bool wanted = td_autotune() && (choices == NULL || (!fits && count > 0));
    pthread_mutex_unlock(&lock);
    if (!wanted) {
        return TD_OK;
    }
    td_plan_cache *made = new_choices();
    double begin = td_clock();
    td_status status = made != NULL ? choose_all(made, f) : TD_E_NOMEM;
    if (status != TD_OK) {
        td_plan_cache_free(made);
        return status;
    }
    f->chosen = td_plan_cache_count(made);
    f->seconds = td_clock() - begin;
    pthread_mutex_lock(&lock);
    set_choices(made, true);
    pthread_mutex_unlock(&lock);
    td_plan_stores_save(); /* at once: who knows how this run ends */
    return TD_OK;
}

char *td_autotune_text(size_t *bytes)
{
    pthread_mutex_lock(&lock);
    char *text = choices != NULL ? td_plan_cache_text(choices, bytes) : NULL;
    pthread_mutex_unlock(&lock);
    return text;
}

td_status td_autotune_take(const char *text, size_t bytes)
{
    td_plan_cache *taken = new_choices();
    td_status status = taken != NULL ? td_plan_cache_parse(taken, text, bytes) : TD_E_NOMEM;
    pthread_mutex_lock(&lock);
    bool used = status == TD_OK && td_autotune();
    if (used) {
        set_choices(taken, false);
    }
    pthread_mutex_unlock(&lock);
    if (!used) {
        td_plan_cache_free(taken);
    }
    return status;
}
