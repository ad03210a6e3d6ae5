#include "protocol/all_gather.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kWorld, Share kShare>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2)
    run_all_gather(const __grid_constant__ CallParams params) {
  Machine<Element, kShare> machine(params.channel, params.request);
  all_gather<Element, kWorld>(machine, params.channel, params.request);
}

}  // namespace

// Nothing is summed. All that an element tells here is how memory that is not aligned is read, two bytes at a time, and
// a NaN, which is one as float32, too.
const void* all_gather_kernel(Word world, Share share) {
  return dispatch_world<BFloat16>(world, [&]<class Element, int kWorld>() {
    return dispatch_share(
        share, [&]<Share kShare>() { return reinterpret_cast<const void*>(&run_all_gather<Element, kWorld, kShare>); });
  });
}

}  // namespace pcie_allreduce::cuda
