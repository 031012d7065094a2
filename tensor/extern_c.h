/* What is between TD_BEGIN_C and TD_END_C is the library's interface: the shared library exports
 * these functions and no others, and C++ programs call them with C's linkage. */
#ifndef TD_TENSOR_EXTERN_C_H
#define TD_TENSOR_EXTERN_C_H

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
#else
#define TD_BEGIN_C TD_EXPORT_
#define TD_END_C TD_EXPORT_END_
#define TD_NORETURN _Noreturn
#endif

#endif
