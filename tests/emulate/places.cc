/* For tests: the place of an element of a walk, by the kernels' own function. No kernel of a test
 * comes to elements beyond 2^31. */
#include "tensor/cuda/compute.cuh"

extern "C" void td_emulate_places(const td_cuda_walk *walk, int64_t i, int64_t place[3]);
extern "C" void td_emulate_places(const td_cuda_walk *walk, int64_t i, int64_t place[3])
{
    td_cuda_places<3>(*walk, i, place);
}
