#include "tensor/extend.h"
#include "tensor/folders.h"
#include "tensor/temporary.h"
#include "tensor/tune/store.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char first_line[] = "tandem-plans 1\n";

typedef struct plan {
    char *key;
    char *text; /* with a zero behind it; NULL: removed, and not to be taken from a file again */
    size_t bytes;
} plan;

struct td_plan_cache {
    char *owner;
    plan *plans;
    int count, capacity;
    int removed; /* of those counted */
};

td_plan_cache *td_plan_cache_new(const char *owner)
{
    td_plan_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL || (cache->owner = strdup(owner)) == NULL) {
        free(cache);
        (void)td_fail(TD_E_NOMEM, "out of memory for a plan cache");
        return NULL;
    }
    return cache;
}

static void clear(plan *p)
{
    free(p->key);
    free(p->text);
}

void td_plan_cache_free(td_plan_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    for (int i = 0; i < cache->count; i++) {
        clear(&cache->plans[i]);
    }
    free(cache->plans);
    free(cache->owner);
    free(cache);
}

int td_plan_cache_count(const td_plan_cache *cache)
{
    return cache->count - cache->removed;
}

static plan *find(const td_plan_cache *cache, const char *key)
{
    for (int i = 0; i < cache->count; i++) {
        if (strcmp(cache->plans[i].key, key) == 0) {
            return &cache->plans[i];
        }
    }
    return NULL;
}

const char *td_plan_cache_get(const td_plan_cache *cache, const char *key, size_t *bytes)
{
    const plan *p = find(cache, key);
    if (p == NULL || p->text == NULL) {
        return NULL;
    }
    *bytes = p->bytes;
    return p->text;
}

static bool is_good_key(const char *key, size_t length)
{
    if (length == 0 || length >= TD_PLAN_KEY_MAX) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (!isprint((unsigned char)key[i])) {
            return false;
        }
    }
    return true;
}

static bool make_plan(plan *p, const char *key, size_t length, const void *text, size_t bytes)
{
    *p = (plan){ .key = strndup(key, length), .text = malloc(bytes + 1), .bytes = bytes };
    if (p->key == NULL || p->text == NULL) {
        clear(p);
        return false;
    }
    memcpy(p->text, text, bytes);
    p->text[bytes] = '\0';
    return true;
}

/* Takes over p; on failure p is the caller's still. */
static td_status append(td_plan_cache *cache, plan p)
{
    if (cache->count == cache->capacity) {
        int capacity = cache->capacity == 0 ? 64 : 2 * cache->capacity;
        plan *grown = realloc(cache->plans, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return td_fail(TD_E_NOMEM, "out of memory for a plan cache");
        }
        cache->plans = grown;
        cache->capacity = capacity;
    }
    cache->plans[cache->count++] = p;
    return TD_OK;
}

td_status td_plan_cache_put(td_plan_cache *cache, const char *key, const void *text, size_t bytes)
{
    if (!is_good_key(key, strlen(key)) || bytes > TD_PLAN_TEXT_MAX ||
        cache->count >= TD_PLAN_COUNT_MAX) {
        return td_fail(TD_E_ARG, "a plan of %zu bytes for '%.60s' cannot be kept", bytes, key);
    }
    plan p;
    if (!make_plan(&p, key, strlen(key), text, bytes)) {
        return td_fail(TD_E_NOMEM, "out of memory for a plan cache");
    }
    plan *old = find(cache, key);
    if (old != NULL) {
        cache->removed -= old->text == NULL;
        clear(old);
        *old = p;
        return TD_OK;
    }
    td_status status = append(cache, p);
    if (status != TD_OK) {
        clear(&p);
    }
    return status;
}

void td_plan_cache_remove(td_plan_cache *cache, const char *key)
{
    plan *p = find(cache, key);
    if (p != NULL && p->text != NULL) {
        free(p->text);
        p->text = NULL;
        cache->removed++;
    }
}

/* ---- the file's form ---- */

static uint32_t crc32_of(const unsigned char *bytes, size_t count)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1u ? 0xedb88320u : 0);
        }
    }
    return ~crc;
}

typedef struct reader {
    const char *at, *end;
    int line;
} reader;

/* The next line, without its end; false if no whole line is left. */
static bool next_line(reader *r, const char **line, size_t *length)
{
    const char *stop = r->at < r->end ? memchr(r->at, '\n', (size_t)(r->end - r->at)) : NULL;
    if (stop == NULL) {
        return false;
    }
    *line = r->at;
    *length = (size_t)(stop - r->at);
    r->at = stop + 1;
    r->line++;
    return true;
}

/* Reads a number of digits in a base; moves *at behind it and the space that must follow. */
static bool read_number(const char **at, const char *end, unsigned base, unsigned long *value)
{
    const char *start = *at;
    *value = 0;
    for (; *at < end && isxdigit((unsigned char)**at); (*at)++) {
        unsigned char c = (unsigned char)**at;
        unsigned digit = isdigit(c) ? c - (unsigned)'0' : (unsigned)tolower(c) - 'a' + 10;
        if (digit >= base || *at - start >= 9) {
            return false;
        }
        *value = *value * base + digit;
    }
    if (*at == start || *at == end || **at != ' ') {
        return false;
    }
    (*at)++;
    return true;
}

static td_status damaged(const reader *r, const char *what)
{
    return td_fail(TD_E_FORMAT, "line %d: %s", r->line, what);
}

/* "plan BYTES CRC KEY", the text, and an end of line. */
static td_status read_plan(reader *r, td_plan_cache *into)
{
    const char *line;
    size_t length;
    unsigned long bytes, crc;
    if (!next_line(r, &line, &length) || length < 5 || memcmp(line, "plan ", 5) != 0) {
        return damaged(r, "a line 'plan ...' was expected");
    }
    const char *at = line + 5, *end = line + length;
    if (!read_number(&at, end, 10, &bytes) || !read_number(&at, end, 16, &crc) ||
        !is_good_key(at, (size_t)(end - at))) {
        return damaged(r, "not of the form 'plan BYTES CRC KEY'");
    }
    if (bytes > TD_PLAN_TEXT_MAX || bytes >= (size_t)(r->end - r->at) || r->at[bytes] != '\n') {
        return damaged(r, "the plan is cut off");
    }
    const char *text = r->at;
    if (crc32_of((const unsigned char *)text, bytes) != crc) {
        return damaged(r, "the plan is damaged (CRC)");
    }
    r->at += bytes + 1;
    r->line++;
    char key[TD_PLAN_KEY_MAX];
    snprintf(key, sizeof key, "%.*s", (int)(end - at), at);
    if (find(into, key) != NULL) {
        return damaged(r, "the key appears twice");
    }
    return td_plan_cache_put(into, key, text, bytes);
}

static td_status read_all(reader *r, td_plan_cache *into)
{
    const char *line;
    size_t length;
    if (!next_line(r, &line, &length) || length != sizeof first_line - 2 ||
        memcmp(line, first_line, length) != 0) {
        return damaged(r, "this is no plan cache of this version");
    }
    if (!next_line(r, &line, &length) || length < 4 || memcmp(line, "for ", 4) != 0) {
        return damaged(r, "a line 'for ...' was expected");
    }
    if (length - 4 != strlen(into->owner) || memcmp(line + 4, into->owner, length - 4) != 0) {
        return td_fail(TD_E_FORMAT, "it is for %.*s, and this is %s", (int)(length - 4), line + 4,
                       into->owner);
    }
    while (r->at < r->end) {
        td_status status = read_plan(r, into);
        if (status != TD_OK) {
            return status;
        }
    }
    return TD_OK;
}

/* Moves the plans that `cache` has not out of `from`, in their order: text that is taken over and
 * written again is the same text. */
static td_status merge(td_plan_cache *cache, td_plan_cache *from)
{
    for (int i = 0; i < from->count; i++) {
        plan *p = &from->plans[i];
        if (find(cache, p->key) == NULL && cache->count < TD_PLAN_COUNT_MAX) {
            td_status status = append(cache, *p);
            if (status != TD_OK) {
                return status;
            }
            *p = (plan){ .key = NULL };
        }
    }
    return TD_OK;
}

td_status td_plan_cache_parse(td_plan_cache *cache, const void *contents, size_t bytes)
{
    if (bytes > TD_PLAN_FILE_MAX) {
        return td_fail(TD_E_FORMAT, "%zu bytes are too many for a plan cache", bytes);
    }
    td_plan_cache *found = td_plan_cache_new(cache->owner);
    if (found == NULL) {
        return TD_E_NOMEM;
    }
    reader r = { .at = contents, .end = (const char *)contents + bytes };
    td_status status = read_all(&r, found);
    if (status == TD_OK) {
        status = merge(cache, found);
    }
    td_plan_cache_free(found);
    return status;
}

static bool write_plans(const td_plan_cache *cache, FILE *file)
{
    fprintf(file, "%sfor %s\n", first_line, cache->owner);
    for (int i = 0; i < cache->count; i++) {
        const plan *p = &cache->plans[i];
        if (p->text == NULL) {
            continue;
        }
        fprintf(file, "plan %zu %08x %s\n", p->bytes,
                crc32_of((const unsigned char *)p->text, p->bytes), p->key);
        fwrite(p->text, 1, p->bytes, file);
        fputc('\n', file);
    }
    return fflush(file) == 0 && ferror(file) == 0;
}

char *td_plan_cache_text(const td_plan_cache *cache, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);
    bool good = file != NULL && write_plans(cache, file);
    good = file != NULL && fclose(file) == 0 && good;
    if (!good) {
        free(text);
        (void)td_fail(TD_E_NOMEM, "out of memory for the text of a plan cache");
        return NULL;
    }
    return text;
}

/* ---- files ---- */

static td_status read_file(FILE *file, const char *path, char **contents, size_t *bytes)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size > TD_PLAN_FILE_MAX) {
        return td_fail(TD_E_FORMAT, "%s is no plan cache: not a file, or too large", path);
    }
    *bytes = (size_t)info.st_size;
    *contents = malloc(*bytes + 1);
    if (*contents == NULL) {
        return td_fail(TD_E_NOMEM, "out of memory for %s", path);
    }
    if (fread(*contents, 1, *bytes, file) != *bytes) {
        free(*contents);
        return td_fail(TD_E_IO, "%s cannot be read", path);
    }
    return TD_OK;
}

td_status td_plan_cache_load(td_plan_cache *cache, const char *path)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return td_fail(errno == ENOENT ? TD_E_NOTFOUND : TD_E_IO, "%s: %s", path, strerror(errno));
    }
    char *contents;
    size_t bytes;
    td_status status = read_file(file, path, &contents, &bytes);
    fclose(file);
    if (status != TD_OK) {
        return status;
    }
    status = td_plan_cache_parse(cache, contents, bytes);
    free(contents);
    return status == TD_OK ? TD_OK : td_fail_context(status, "%s", path);
}

td_status td_plan_cache_save(td_plan_cache *cache, const char *path)
{
    (void)td_plan_cache_load(cache, path); /* what another process has added */
    TD_TRY(td_make_folder_of(path));
    char *temporary;
    FILE *file = td_temporary_file(path, &temporary);
    bool written = file != NULL && write_plans(cache, file);
    return file != NULL && td_temporary_end(file, temporary, path) == NULL && written
               ? TD_OK
               : td_fail(TD_E_IO, "%s cannot be written: %s", path, strerror(errno));
}
