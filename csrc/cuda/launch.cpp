#include "cuda/launch.h"

#include <algorithm>
#include <vector>

namespace pcie_allreduce::cuda {

const void* kernel_of(Algorithm algorithm, Dtype dtype, Word world, Share share, Transport transport) {
  if (transport != Transport::kPush) {
    if (algorithm != Algorithm::kOneShot && algorithm != Algorithm::kTwoShot) {
      throw std::invalid_argument("algorithm code " + std::to_string(static_cast<Word>(algorithm)) +
                                  " pushes, and into GPU memory");
    }
    return (transport == Transport::kPull ? pull_kernel : staged_kernel)(algorithm, dtype, world, share);
  }
  switch (algorithm) {
    case Algorithm::kOneShot: return one_shot_kernel(dtype, world, share);
    case Algorithm::kTwoShot: return two_shot_kernel(dtype, world, share);
    case Algorithm::kIsland: return island_kernel(dtype, world, share);
    case Algorithm::kReduceScatter: return reduce_scatter_kernel(dtype, world, share);
    case Algorithm::kAllGather: return all_gather_kernel(world, share);
    default:
      throw std::invalid_argument("no kernel has algorithm code " + std::to_string(static_cast<Word>(algorithm)));
  }
}

const void* fused_kernel_of(Algorithm algorithm, Dtype dtype, Word world, Share share, bool clustered) {
  switch (algorithm) {
    case Algorithm::kOneShot: return fused_one_shot_kernel(dtype, world, share, clustered);
    case Algorithm::kTwoShot: return fused_two_shot_kernel(dtype, world);
    case Algorithm::kIsland: return fused_island_kernel(dtype, world);
    default:
      throw std::invalid_argument("no fused kernel has algorithm code " + std::to_string(static_cast<Word>(algorithm)));
  }
}

namespace {

// A launch's configuration, with the attributes that it points to.
struct Configured {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};

  Configured(const LaunchShape& shape, cudaStream_t stream) {
    config.gridDim = dim3(shape.blocks);
    config.blockDim = dim3(shape.threads + kStewards);
    config.dynamicSmemBytes = shape.shared;
    config.stream = stream;
    config.attrs = attributes;
    if (shape.dependent) {
      attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {shape.cluster, 1, 1};
    }
  }
  Configured(const Configured&) = delete;
  Configured& operator=(const Configured&) = delete;
};

}  // namespace

cudaError_t launch(const void* kernel, const void* params, const LaunchShape& shape, cudaStream_t stream) {
  const Configured configured(shape, stream);
  void* arguments[] = {const_cast<void*>(params)};
  return cudaLaunchKernelExC(&configured.config, kernel, arguments);
}

cudaError_t resident_teams(Algorithm algorithm, Word world, unsigned threads, unsigned cluster, int multiprocessors,
                           int* teams) {
  *teams = 1 << 20;
  const unsigned shared = owners_of(algorithm, world) > 1 ? kMaxPartShared : kMaxShared;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const Share share : {Share::kOnePack, Share::kPacks}) {
      const void* kernel = fused_kernel_of(algorithm, dtype, world, share, cluster > 1);
      int fit = 0;
      cudaError_t error = cudaSuccess;
      if (cluster > 1) {
        const Configured configured({cluster, threads, false, cluster, shared}, nullptr);
        error = cudaOccupancyMaxActiveClusters(&fit, kernel, &configured.config);
      } else {
        error =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, static_cast<int>(threads + kStewards), shared);
        fit *= multiprocessors;
      }
      if (error != cudaSuccess) return error;
      *teams = std::min(*teams, fit);
    }
  }
  return cudaSuccess;
}

cudaError_t blocks_per_multiprocessor(Word world, unsigned threads, Transport transport, int* blocks) {
  *blocks = 1 << 20;
  std::vector<Algorithm> algorithms = {Algorithm::kOneShot, Algorithm::kTwoShot};
  if (transport == Transport::kPush) {
    algorithms.insert(algorithms.end(), {Algorithm::kReduceScatter, Algorithm::kAllGather});
    if (world >= 4 && world % 2 == 0) algorithms.push_back(Algorithm::kIsland);
  }
  for (const Algorithm algorithm : algorithms) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) {
      for (const Share share : {Share::kOnePack, Share::kPacks, Share::kElements}) {
        int fit = 0;
        const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &fit, kernel_of(algorithm, dtype, world, share, transport), static_cast<int>(threads + kStewards), 0);
        if (error != cudaSuccess) return error;
        *blocks = std::min(*blocks, fit);
      }
    }
  }
  return cudaSuccess;
}

}  // namespace pcie_allreduce::cuda
