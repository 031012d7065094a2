/* Texts: a hash, plain text, notices on stderr, and the name that was probably meant. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a (Fowler, Noll, Vo), 64 bits; hash: TD_HASH_BEGIN, or that of what came before. */
#define TD_HASH_BEGIN UINT64_C(0xcbf29ce484222325)
static inline uint64_t td_hash_bytes(uint64_t hash, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static inline uint64_t td_hash_text(uint64_t hash, const char *text)
{
    return td_hash_bytes(hash, text, strlen(text));
}

/* Texts of others (names of files and classes, what a peer or a file says) may hold anything. Plain
 * is a line that every program and terminal takes as it is: UTF-8 without control characters,
 * breaks of lines, marks of byte order, and marks that turn the direction of what follows. */
bool td_is_plain_text(const char *text);
/* Any characters, control characters, too, but UTF-8. */
bool td_is_utf8(const char *text);
/* For all that is printed: each byte that is not plain becomes '?', but for tabs. */
void td_clean_text(char *text);

/* Formats behind the text, which has `size` bytes of memory; what has no room is dropped. Numbers
 * are written as by number.h. */
void td_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes "tandem: ..." on stderr: for facts that the user should know and that are no errors. Texts
 * whose first 159 bytes are equal are written once, and a process writes 16 texts at most. Any
 * thread. */
void td_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For messages about unknown names: of count names (at least one) the one with the fewest letters
 * to insert, delete, change or swap with a neighbour; the first of several. Letters that only
 * follow the word count as one. Letters' case does not count. */
const char *td_nearest_name(const char *word, const char *const *names, int count);

/* The same, of any number of names; NULL if that name is unlike the word: it begins with another
 * letter, and more than half of the word's letters would have to change. */
const char *td_alike_name(const char *word, const char *const *names, int count);
