/* Makers of batches for GPUs. Not for users. */
#pragma once

#include "data/maker.h"

/* Workers assemble batches in CPU memory, and a stream of its own sends them: one goes over while
 * the GPU works on the one before. Batches go as they lie in CPU memory; the GPU puts them into its
 * own order. NULL with td_last_error(). */
td_batch_maker *td_streamed_new(const td_batch_plan *plan);

/* The dataset's images (td_images_of) stay on the GPU as bytes, and the GPU cuts batches out of
 * them: crop, flip and normalisation are the CPU's, bit for bit. NULL with td_last_error(): the
 * images do not fit on the device. */
td_batch_maker *td_resident_new(const td_batch_plan *plan);
