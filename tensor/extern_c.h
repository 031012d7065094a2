/* For C++ programs: functions between TD_BEGIN_C and TD_END_C have C's linkage. */
#ifndef TD_TENSOR_EXTERN_C_H
#define TD_TENSOR_EXTERN_C_H

#ifdef __cplusplus
#define TD_BEGIN_C extern "C" {
#define TD_END_C }
#define TD_NORETURN [[noreturn]]
#else
#define TD_BEGIN_C
#define TD_END_C
#define TD_NORETURN _Noreturn
#endif

#endif
