#include "protocol/island.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kHalf, bool kRagged>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2) run_island(const __grid_constant__ CallParams params) {
  Machine<Element, kRagged> machine(params.channel, params.request);
  island<Element, kHalf>(machine, params.channel, params.request);
}

}  // namespace

const void* island_kernel(Dtype dtype, Word world, bool ragged) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_half<Element>(world, [&]<class, int kHalf>() {
      return ragged ? reinterpret_cast<const void*>(&run_island<Element, kHalf, true>)
                    : reinterpret_cast<const void*>(&run_island<Element, kHalf, false>);
    });
  });
}

}  // namespace pcie_allreduce::cuda
