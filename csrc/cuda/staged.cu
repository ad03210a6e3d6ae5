#include "protocol/staged.h"

#include "cuda/launch.h"
#include "cuda/staged_machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

// One block a multiprocessor: the link is the limit, and two would have to spill.
template <class Element, int kWorld, Share kShare>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 1)
    run_staged_one_shot(const __grid_constant__ CallParams params) {
  StagedMachine<Element, kWorld, kShare> machine(params.channel, params.request);
  staged_one_shot<Element, kWorld>(machine, params.channel, params.request);
}

template <class Element, int kWorld, Share kShare>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 1)
    run_staged_two_shot(const __grid_constant__ CallParams params) {
  StagedMachine<Element, kWorld, kShare> machine(params.channel, params.request);
  staged_two_shot<Element, kWorld>(machine, params.channel, params.request);
}

}  // namespace

const void* staged_kernel(Algorithm algorithm, Dtype dtype, Word world, Share share) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    return dispatch_world<Element>(world, [&]<class, int kWorld>() {
      return dispatch_link(share, [&]<Share kShare>() {
        return algorithm == Algorithm::kTwoShot
                   ? reinterpret_cast<const void*>(&run_staged_two_shot<Element, kWorld, kShare>)
                   : reinterpret_cast<const void*>(&run_staged_one_shot<Element, kWorld, kShare>);
      });
    });
  });
}

}  // namespace pcie_allreduce::cuda
