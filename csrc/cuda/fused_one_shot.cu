#include "cuda/row_machine.cuh"
#include "protocol/one_shot.h"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kWorld, Share kShare, bool kClustered>
__global__ void __launch_bounds__((kClustered ? kMaxThreads : max_wide_threads(kWorld)) + kStewards, kClustered ? 2 : 1)
    run_fused_one_shot(const __grid_constant__ FusedParams params) {
  extern __shared__ __align__(16) char shared[];
  RowMachine<Element, kShare, kClustered> machine(params, shared);
  one_shot<Element, kWorld>(machine, params.channel, params.request);
}

template <class Element, int kWorld, Share kShare>
const void* kernel_for(bool clustered) {
  return clustered ? reinterpret_cast<const void*>(&run_fused_one_shot<Element, kWorld, kShare, true>)
                   : reinterpret_cast<const void*>(&run_fused_one_shot<Element, kWorld, kShare, false>);
}

}  // namespace

const void* fused_one_shot_kernel(Dtype dtype, Word world, Share share, bool clustered) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_world<Element>(world, [&]<class, int kWorld>() {
      return share == Share::kOnePack ? kernel_for<Element, kWorld, Share::kOnePack>(clustered)
                                      : kernel_for<Element, kWorld, Share::kPacks>(clustered);
    });
  });
}

}  // namespace pcie_allreduce::cuda
