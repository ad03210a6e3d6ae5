#include "protocol/exchange.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

struct ExchangeParams {
  Channel channel;
  Request none;
  Word* verdict;
};

__global__ void exchange_kernel(const __grid_constant__ ExchangeParams params) {
  Machine<Float32, Share::kPacks> machine(params.channel, params.none);
  exchange_greetings(machine, params.channel, params.verdict);
}

}  // namespace

cudaError_t launch_exchange(const Channel& channel, Word* verdict, cudaStream_t stream) {
  exchange_kernel<<<1, kMaxWorld * kGreetingPacks + kStewards, 0, stream>>>(ExchangeParams{channel, {}, verdict});
  return cudaGetLastError();
}

}  // namespace pcie_allreduce::cuda
