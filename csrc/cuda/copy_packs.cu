#include "cuda/launch.h"

namespace pcie_allreduce::cuda {
namespace {

__global__ void copy_packs_kernel(Pack* to, const Pack* from, Word packs) {
  const Word i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < packs) to[i] = from[i];
}

}  // namespace

cudaError_t launch_copy_packs(void* to, const void* from, Word packs, cudaStream_t stream) {
  constexpr Word kThreads = 256;
  copy_packs_kernel<<<(packs + kThreads - 1) / kThreads, kThreads, 0, stream>>>(static_cast<Pack*>(to),
                                                                                static_cast<const Pack*>(from), packs);
  return cudaGetLastError();
}

}  // namespace pcie_allreduce::cuda
