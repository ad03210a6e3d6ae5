#include "cuda/part_machine.cuh"
#include "protocol/island.h"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kHalf>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2)
    run_fused_island(const __grid_constant__ FusedParams params) {
  extern __shared__ __align__(16) char shared[];
  PartMachine<Element, kHalf> machine(params, shared, params.channel.islands.place);
  island<Element, kHalf>(machine, params.channel, params.request);
}

}  // namespace

const void* fused_island_kernel(Dtype dtype, Word world) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_half<Element>(
        world, [&]<class, int kHalf>() { return reinterpret_cast<const void*>(&run_fused_island<Element, kHalf>); });
  });
}

}  // namespace pcie_allreduce::cuda
