/* What is between TD_BEGIN_C and TD_END_C is the library's interface: the shared library exports
 * these functions and no others, and C++ programs call them with C's linkage. */
#pragma once

#define TD_EXPORT_ _Pragma("GCC visibility push(default)")
#define TD_EXPORT_END_ _Pragma("GCC visibility pop")

#ifdef __cplusplus
#define TD_BEGIN_C                                                                                 \
    TD_EXPORT_ extern "C"                                                                          \
    {
#define TD_END_C                                                                                   \
    }                                                                                              \
    TD_EXPORT_END_
#define TD_NORETURN [[noreturn]]
/* Of options the caller gives the first values and names others. C++20 wants names for all or for
 * none, so macros give the first values their names. g++ -Wextra would warn of each option that is
 * not given and is zero: not in programs that include this. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define TD_NAME(field) .field =
#define TD_OPT1(a, ...) .begin_ = 0, .a = __VA_ARGS__
#define TD_OPT2(a, b, x, ...) .begin_ = 0, .a = x, .b = __VA_ARGS__
#define TD_OPT3(a, b, c, x, y, ...) .begin_ = 0, .a = x, .b = y, .c = __VA_ARGS__
#define TD_OPT4(a, b, c, d, x, y, z, ...) .begin_ = 0, .a = x, .b = y, .c = z, .d = __VA_ARGS__
#define TD_OPT5(a, b, c, d, e, v, x, y, z, ...)                                                    \
    .begin_ = 0, .a = v, .b = x, .c = y, .d = z, .e = __VA_ARGS__
/* A temporary whose address can be taken, until the end of the statement. */
#define TD_LVALUE(type, ...) static_cast<const type &>(__VA_ARGS__)
#else
#define TD_BEGIN_C TD_EXPORT_
#define TD_END_C TD_EXPORT_END_
#define TD_NORETURN _Noreturn
#define TD_NAME(field)
#define TD_OPT1(a, ...) .begin_ = 0, __VA_ARGS__
#define TD_OPT2(a, b, ...) .begin_ = 0, __VA_ARGS__
#define TD_OPT3(a, b, c, ...) .begin_ = 0, __VA_ARGS__
#define TD_OPT4(a, b, c, d, ...) .begin_ = 0, __VA_ARGS__
#define TD_OPT5(a, b, c, d, e, ...) .begin_ = 0, __VA_ARGS__
#define TD_LVALUE(type, ...) __VA_ARGS__
#endif

/* Calls NAME_at with a NAME_options of these values, and with the caller's place. */
#define TD_CALL(NAME, ...) NAME##_at((NAME##_options){ __VA_ARGS__ }, TD_HERE)
