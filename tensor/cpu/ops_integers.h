/* Loops of integers, which need no instruction set of their own. */
#pragma once

#include "tensor/cpu/loops.h"

/* i64, i32 or u8; the operation is one of td_binary_of_integers. */
td_binary_loop td_integer_loop(td_binary_op op, td_dtype dtype);

/* i64, i32 or u8 */
td_binary_loop td_integer_compare_loop(td_compare_op op, td_dtype dtype);
