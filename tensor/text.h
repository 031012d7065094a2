/* Help for messages: notices on stderr, and the name that was probably meant. */
#ifndef TD_TENSOR_TEXT_H
#define TD_TENSOR_TEXT_H

/* Writes "tandem: ..." on stderr, once for each different text: what is to be known and is no
 * error. Any thread. */
void td_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For messages about unknown names: of count names (at least one) the one with the fewest letters
 * to insert, delete, change or swap with a neighbour; the first of several. Letters that only
 * follow the word count as one. Letters' case does not count. */
const char *td_nearest_name(const char *word, const char *const *names, int count);

#endif
