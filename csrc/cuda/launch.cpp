#include "cuda/launch.h"

#include <algorithm>

namespace pcie_allreduce::cuda {

const void* kernel_of(Algorithm algorithm, Dtype dtype, Word world, Share share, bool staged) {
  if (staged && algorithm != Algorithm::kIsland) return staged_kernel(algorithm, dtype, world, share);
  if (staged) throw std::invalid_argument("island does not run over host memory");
  switch (algorithm) {
    case Algorithm::kOneShot: return one_shot_kernel(dtype, world, share);
    case Algorithm::kTwoShot: return two_shot_kernel(dtype, world, share);
    case Algorithm::kIsland: return island_kernel(dtype, world, share);
    default:
      throw std::invalid_argument("no kernel has algorithm code " + std::to_string(static_cast<Word>(algorithm)));
  }
}

cudaError_t launch(const void* kernel, const CallParams& params, const LaunchShape& shape, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads + kStewards);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = shape.dependent ? 1 : 0;
  void* arguments[] = {const_cast<CallParams*>(&params)};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

cudaError_t blocks_per_multiprocessor(Word world, unsigned threads, bool staged, int* blocks) {
  *blocks = 1 << 20;
  const bool islands = world >= 4 && world % 2 == 0 && !staged;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kIsland}) {
    if (algorithm == Algorithm::kIsland && !islands) continue;
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) {
      for (const Share share : {Share::kOnePack, Share::kPacks, Share::kElements}) {
        int fit = 0;
        const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &fit, kernel_of(algorithm, dtype, world, share, staged), static_cast<int>(threads + kStewards), 0);
        if (error != cudaSuccess) return error;
        *blocks = std::min(*blocks, fit);
      }
    }
  }
  return cudaSuccess;
}

}  // namespace pcie_allreduce::cuda
