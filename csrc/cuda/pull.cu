#include "protocol/pull.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kWorld, Share kShare>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2)
    run_pull_one_shot(const __grid_constant__ CallParams params) {
  Machine<Element, kShare> machine(params.channel, params.request);
  pull_one_shot<Element, kWorld>(machine, params.channel, params.request);
}

template <class Element, int kWorld, Share kShare>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 2)
    run_pull_two_shot(const __grid_constant__ CallParams params) {
  Machine<Element, kShare> machine(params.channel, params.request);
  pull_two_shot<Element, kWorld>(machine, params.channel, params.request);
}

}  // namespace

const void* pull_kernel(Algorithm algorithm, Dtype dtype, Word world, Share share) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_world<Element>(world, [&]<class, int kWorld>() {
      return dispatch_link(share, [&]<Share kShare>() {
        return algorithm == Algorithm::kTwoShot
                   ? reinterpret_cast<const void*>(&run_pull_two_shot<Element, kWorld, kShare>)
                   : reinterpret_cast<const void*>(&run_pull_one_shot<Element, kWorld, kShare>);
      });
    });
  });
}

}  // namespace pcie_allreduce::cuda
