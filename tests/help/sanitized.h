/* Whether this build is under a sanitizer, where memory and time mean little. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TD_SANITIZED 1
#endif
#endif
#ifndef TD_SANITIZED
#define TD_SANITIZED 0
#endif

/* The one for threads, which lets the child of a fork start none. */
#if defined(__SANITIZE_THREAD__)
#define TD_SANITIZED_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TD_SANITIZED_THREADS 1
#endif
#endif
#ifndef TD_SANITIZED_THREADS
#define TD_SANITIZED_THREADS 0
#endif

/* Whether a test checks a part of its cases: sanitizers make computing ten times as slow, so there
 * only make test-long checks all. */
static inline bool checks_part(void)
{
    return TD_SANITIZED && getenv("TANDEM_LONG") == NULL;
}
