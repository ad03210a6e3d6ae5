#include "cuda/part_machine.cuh"
#include "protocol/two_shot.h"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kWorld>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2)
    run_fused_two_shot(const __grid_constant__ FusedParams params) {
  extern __shared__ __align__(16) char shared[];
  PartMachine<Element, kWorld> machine(params, shared, params.channel.rank);
  two_shot<Element, kWorld>(machine, params.channel, params.request);
}

}  // namespace

const void* fused_two_shot_kernel(Dtype dtype, Word world) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_world<Element>(world, [&]<class, int kWorld>() {
      return reinterpret_cast<const void*>(&run_fused_two_shot<Element, kWorld>);
    });
  });
}

}  // namespace pcie_allreduce::cuda
