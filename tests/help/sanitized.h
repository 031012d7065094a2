/* Whether this build is under a sanitizer, where memory and time mean little. */
#pragma once

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
