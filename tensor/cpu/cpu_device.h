/* The CPU devices of this process: a thread pool each, made when it is first used. Their threads
 * are chosen by the functions of tensor/backend.h. */
#pragma once

#include "tensor/backend.h"
#include "tensor/cpu/pool.h"

/* The pool of a device. NULL (which runs on the caller alone): no memory for one. Any thread. */
td_pool *td_cpu_pool(td_device device);
