/* For tests of stores: what a key holds. */
#pragma once

#include "dist/comm/store.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

static inline void assert_text(td_store *store, const char *key, const char *wanted)
{
    char *text;
    assert_int_equal(td_store_get_text(store, key, 5, &text), TD_OK);
    assert_string_equal(text, wanted);
    free(text);
}
