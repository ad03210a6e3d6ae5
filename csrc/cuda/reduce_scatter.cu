#include "protocol/reduce_scatter.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kWorld, Share kShare>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2)
    run_reduce_scatter(const __grid_constant__ CallParams params) {
  Machine<Element, kShare> machine(params.channel, params.request);
  reduce_scatter<Element, kWorld>(machine, params.channel, params.request);
}

}  // namespace

const void* reduce_scatter_kernel(Dtype dtype, Word world, Share share) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_world<Element>(world, [&]<class, int kWorld>() {
      return dispatch_share(share, [&]<Share kShare>() {
        return reinterpret_cast<const void*>(&run_reduce_scatter<Element, kWorld, kShare>);
      });
    });
  });
}

}  // namespace pcie_allreduce::cuda
