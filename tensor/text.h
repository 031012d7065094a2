/* The name that was probably meant, for messages about unknown names. */
#ifndef TD_TENSOR_NEAREST_H
#define TD_TENSOR_NEAREST_H

/* Of count names (at least one) the one with the fewest letters to insert, delete, change or swap
 * with a neighbour; the first of several. Letters that only follow the word count as one. Letters'
 * case does not count. */
const char *td_nearest_name(const char *word, const char *const *names, int count);

#endif
