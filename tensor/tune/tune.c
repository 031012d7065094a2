/* Autotuning: notes which choices a step needs, times them, and applies them at once. */
#include "tensor/tune/tune.h"
#include "tensor/clock.h"

#include "tensor/tune/store.h"
#include "tensor/system/list.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A problem, with the algorithm that was chosen for it. */
typedef struct choice {
    char key[TD_PLAN_KEY_MAX];
    td_autotune_fn choose; /* NULL: the choice was taken over, not made here */
    void *problem;
    char *text; /* the algorithm, with a '\0' behind it; NULL: the rules decide */
    size_t bytes;
} choice;

typedef struct choices {
    choice *at;
    int count;
    size_t capacity;
} choices;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool on;
static atomic_uint round_now;
static choices all;
static bool made;        /* algorithms have been chosen */
static bool fits = true; /* they were chosen here, or taken over and some have been used */

/* After this time the rest is left to the rules: other ranks wait, and not for ever. */
static const double MOST_SECONDS = 120;

/* ---- a list of choices ---- */

static void tune_clear(choices *list)
{
    for (int i = 0; i < list->count; i++) {
        free(list->at[i].problem);
        free(list->at[i].text);
    }
    free(list->at);
    *list = (choices){ 0 };
}

static choice *tune_find(const choices *list, const char *key)
{
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->at[i].key, key) == 0) {
            return &list->at[i];
        }
    }
    return NULL;
}

/* The choice of a key, a new one if there is none. NULL: out of memory, or the key is too long. */
static choice *add(choices *list, const char *key)
{
    choice *found = tune_find(list, key);
    if (found != NULL || strlen(key) >= TD_PLAN_KEY_MAX) {
        return found;
    }
    choice *grown = td_list_room(list->at, (size_t)list->count, &list->capacity, sizeof *grown);
    if (grown == NULL) {
        return NULL;
    }
    list->at = grown;
    choice *c = &list->at[list->count++];
    *c = (choice){ 0 };
    strcpy(c->key, key);
    return c;
}

/* A copy with a '\0' behind it. */
static void *copy_of(const void *from, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    if (copy != NULL) {
        memcpy(copy, from, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}

/* ---- as text ----
 *
 *     tandem-choices 1
 *     choice 1186 conv forward bf16 ...      bytes and key of what follows
 *     {...}
 *     end
 */

static const char first_line[] = "tandem-choices 1\n", last_line[] = "end\n";

static bool write_choices(FILE *file)
{
    fputs(first_line, file);
    for (int i = 0; i < all.count; i++) {
        const choice *c = &all.at[i];
        if (c->text != NULL) {
            fprintf(file, "choice %zu %s\n%s\n", c->bytes, c->key, c->text);
        }
    }
    fputs(last_line, file);
    return !ferror(file);
}

/* Reads what write_choices has written, with a '\0' behind it. */
static td_status read_choices(const char *at, choices *list)
{
    const char *end = at + strlen(at);
    TD_CHECK(strncmp(at, first_line, sizeof first_line - 1) == 0, TD_E_FORMAT,
             "these are no choices of this version");
    at += sizeof first_line - 1;
    while (strcmp(at, last_line) != 0) {
        char key[TD_PLAN_KEY_MAX];
        size_t bytes;
        int length = 0;
        TD_CHECK(sscanf(at, "choice %zu %199[^\n]%*1[\n]%n", &bytes, key, &length) == 2 &&
                     length != 0 && bytes < (size_t)(end - at - length) &&
                     at[length + bytes] == '\n',
                 TD_E_FORMAT, "the choices are damaged at '%.40s'", at);
        choice *c = add(list, key);
        if (c == NULL || c->text != NULL || (c->text = copy_of(at + length, bytes)) == NULL) {
            return c != NULL && c->text != NULL
                       ? td_fail(TD_E_FORMAT, "there are two choices for '%s'", key)
                       : td_fail(TD_E_NOMEM, "out of memory for choices");
        }
        c->bytes = bytes;
        at += (size_t)length + bytes + 1;
    }
    return TD_OK;
}

/* Takes over a list, or an empty one. Under the lock. */
static void set_choices(choices *list, bool are_made, bool fit)
{
    tune_clear(&all);
    if (list != NULL) {
        all = *list;
        *list = (choices){ 0 };
    }
    made = are_made;
    fits = fit;
    atomic_fetch_add(&round_now, 1);
}

/* ---- for all ---- */

void td_set_autotune(bool wanted)
{
    pthread_mutex_lock(&lock);
    atomic_store(&on, wanted);
    set_choices(NULL, false, true);
    pthread_mutex_unlock(&lock);
}

void td_autotune_first_step(void)
{
    pthread_mutex_lock(&lock);
    if (!made) {
        tune_clear(&all);
    }
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
    choice *c = td_autotune() ? tune_find(&all, key) : NULL;
    if (c != NULL && c->text != NULL) {
        fits = true;
        *bytes = c->bytes;
        copy = copy_of(c->text, c->bytes);
    } else if (td_autotune() && c == NULL && (!made || !fits)) {
        void *own = copy_of(problem, size);
        c = own != NULL ? add(&all, key) : NULL;
        if (c != NULL) { /* short of memory, it stays a problem for the rules */
            c->choose = choose;
            c->problem = own;
        } else {
            free(own);
        }
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

/* Without the lock: devices use the same functions while they choose. No step runs, so the list
 * stays as it is. */
static void choose_all(td_autotune_stats *stats)
{
    double begin = td_clock();
    for (int i = 0; i < all.count; i++) {
        if (all.at[i].choose == NULL) {
            continue;
        }
        if (td_clock() - begin > MOST_SECONDS) {
            stats->left++;
            continue;
        }
        size_t bytes;
        bool timed = true;
        char *text = all.at[i].choose(all.at[i].problem, &bytes, &timed);
        all.at[i].text = text;
        all.at[i].bytes = text != NULL ? bytes : 0;
        stats->timed += text != NULL && timed;
        stats->chosen += text != NULL;
    }
    stats->seconds = td_clock() - begin;
}

/* Drops what was taken over and fits nothing. */
static void drop_taken(void)
{
    int kept = 0;
    for (int i = 0; i < all.count; i++) {
        if (all.at[i].choose != NULL) {
            all.at[kept++] = all.at[i];
        } else {
            free(all.at[i].text);
        }
    }
    all.count = kept;
}

td_status td_autotune_choose(td_autotune_stats *stats)
{
    td_autotune_stats ignored, *f = stats != NULL ? stats : &ignored;
    *f = (td_autotune_stats){ 0 };
    pthread_mutex_lock(&lock);
    int noted = 0;
    for (int i = 0; i < all.count; i++) {
        noted += all.at[i].choose != NULL;
    }
    bool wanted = td_autotune() && (!made || (!fits && noted > 0));
    if (wanted) {
        drop_taken();
    }
    pthread_mutex_unlock(&lock);
    if (!wanted) {
        return TD_OK;
    }
    choose_all(f);
    pthread_mutex_lock(&lock);
    made = fits = true;
    atomic_fetch_add(&round_now, 1);
    pthread_mutex_unlock(&lock);
    return TD_OK;
}

char *td_autotune_text(size_t *bytes)
{
    char *text = NULL;
    pthread_mutex_lock(&lock);
    FILE *file = made ? open_memstream(&text, bytes) : NULL;
    bool good = file != NULL && write_choices(file);
    if (file != NULL && (fclose(file) != 0 || !good)) {
        free(text);
        text = NULL;
    }
    pthread_mutex_unlock(&lock);
    return text;
}

td_status td_autotune_take(const char *text, size_t bytes)
{
    choices taken = { 0 };
    char *copy = copy_of(text, bytes);
    td_status status = copy != NULL ? read_choices(copy, &taken)
                                    : td_fail(TD_E_NOMEM, "out of memory for choices");
    free(copy);
    pthread_mutex_lock(&lock);
    if (status == TD_OK && td_autotune()) {
        set_choices(&taken, true, false);
    }
    pthread_mutex_unlock(&lock);
    tune_clear(&taken);
    return status;
}
