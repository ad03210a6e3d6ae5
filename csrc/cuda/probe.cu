#include "protocol/probe.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

struct ProbeParams {
  Channel channel;
  Request none;
  Experiment experiment;
  Result* results;
};

struct ProbeMachine : Machine<Float32, Share::kPacks> {
  using Machine::Machine;
  __device__ __forceinline__ void fence() const { ptx::fence_sys(); }
};

__global__ void __launch_bounds__(kMaxThreads + kStewards) probe_kernel(const __grid_constant__ ProbeParams params) {
  ProbeMachine machine(params.channel, params.none);
  Prober prober(machine, params.channel, params.experiment, params.results, blockIdx.x);
  prober.run();
}

bool fills_the_link(ExperimentKind kind) {
  return kind == ExperimentKind::kFill || kind == ExperimentKind::kPush || kind == ExperimentKind::kPull;
}

}  // namespace

cudaError_t launch_experiment(const Channel& channel, const Experiment& experiment, Result* results,
                              cudaStream_t stream) {
  const unsigned blocks = fills_the_link(experiment.kind) ? kProbeBlocks : 1;
  probe_kernel<<<blocks, kMaxThreads + kStewards, 0, stream>>>(ProbeParams{channel, {}, experiment, results});
  return cudaGetLastError();
}

}  // namespace pcie_allreduce::cuda
