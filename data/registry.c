/* Which maker assembles a loader's batches. */
#include "data/device/makers.h"
#include "data/images_memory.h"

td_batch_maker *td_batch_maker_new(const td_batch_plan *plan)
{
    if (plan->device.type == TD_DEVICE_CPU) {
        return td_ring_new(plan);
    }
    bool keep = !plan->streamed && td_images_of(plan->dataset) != NULL;
    td_batch_maker *resident = keep ? td_resident_new(plan) : NULL;
    /* Images that do not fit on the device go over batch by batch. */
    return resident != NULL ? resident : td_streamed_new(plan);
}
