#include "protocol/island.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kHalf, Share kShare>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2) run_island(const __grid_constant__ CallParams params) {
  Machine<Element, kShare> machine(params.channel, params.request);
  island<Element, kHalf>(machine, params.channel, params.request);
}

}  // namespace

const void* island_kernel(Dtype dtype, Word world, Share share) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_half<Element>(world, [&]<class, int kHalf>() {
      return dispatch_share(
          share, [&]<Share kShare>() { return reinterpret_cast<const void*>(&run_island<Element, kHalf, kShare>); });
    });
  });
}

}  // namespace pcie_allreduce::cuda
