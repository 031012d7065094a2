/* Lists of classes' names: read, written, shown. A label is the place of a name in such a list, so
 * each name stands there once. Users do not include this. */
#pragma once

#include "data/data.h"

typedef struct td_class_names {
    char **name; /* [count] */
    int count;
} td_class_names;

/* Adds a copy of a name: a line of plain text (tensor/system/text.h) of at most TD_CLASS_NAME
 * bytes. TD_E_FORMAT: says what is wrong with it; `where` ("names.txt:3") begins the message.
 * TD_E_NOMEM. */
enum { TD_CLASS_NAME = 1000 };
td_status td_class_names_add(td_class_names *list, const char *where, const char *name);

/* Reads a list, a name a line; `where` is the file's name. Blank lines at the end do not count. In
 * a list by hand neither do a mark of byte order, blanks around a name, and a CR at the end of a
 * line. TD_E_FORMAT with the line: no name, or the name of a line before; TD_E_NOMEM. */
td_status td_class_names_parse(const char *where, const char *text, size_t size, bool by_hand,
                               td_class_names *list);
/* Adds a copy of each name; TD_E_NOMEM. */
td_status td_class_names_copy(const char *const *names, int count, td_class_names *list);
void td_class_names_free(td_class_names *list);

/* The place of a name, or -1. Looks at `first` first: lists of one order are found at once. */
int td_class_names_find(const char *const *names, int count, const char *name, int first);
/* "2 classes: 'ant', 'bee'", for messages; a long list ends by "...". Returns text. */
enum { TD_CLASS_LIST = 700 };
const char *td_class_names_show(const char *const *names, int count, char text[TD_CLASS_LIST]);
