#include "cuda/launch.h"

#include <algorithm>

namespace pcie_allreduce::cuda {

const void* kernel_of(Algorithm algorithm, Dtype dtype, Word world, Share share, Transport transport) {
  if (transport != Transport::kPush) {
    if (algorithm == Algorithm::kIsland) throw std::invalid_argument("island pushes, and into GPU memory");
    return (transport == Transport::kPull ? pull_kernel : staged_kernel)(algorithm, dtype, world, share);
  }
  switch (algorithm) {
    case Algorithm::kOneShot: return one_shot_kernel(dtype, world, share);
    case Algorithm::kTwoShot: return two_shot_kernel(dtype, world, share);
    case Algorithm::kIsland: return island_kernel(dtype, world, share);
    default:
      throw std::invalid_argument("no kernel has algorithm code " + std::to_string(static_cast<Word>(algorithm)));
  }
}

Rows rows_of(Word world, Word hidden, Word row_packs, Word rows, unsigned teams, unsigned cluster, unsigned threads) {
  const Word lanes = cluster * threads;
  const bool stacked = row_packs <= lanes;
  const Word items = stacked ? (rows + teams - 1) / std::max(teams, 1u) : (row_packs + lanes - 1) / std::max(lanes, 1u);
  const Word groups = (row_packs + 31) / 32;
  const Word stride = (groups + 3) / 4 * 4;  // sums are read four at a time
  const Word sums = stacked ? items * stride : stride;
  const Word sum_bytes = (sums + kMaxCluster) * static_cast<Word>(sizeof(float));
  const unsigned most = cluster > 1 ? kMaxThreads : max_wide_threads(world);
  if (teams == 0 || teams > rows || cluster == 0 || cluster > kMaxCluster || teams * cluster > kMaxBlocks ||
      threads == 0 || threads % 32 != 0 || threads > most || (!stacked && teams != rows) ||
      sum_bytes + (items - 1) * threads * sizeof(Pack) > kMaxShared) {
    throw std::invalid_argument("launch shape " + std::to_string(teams) + " x " + std::to_string(cluster) + " x " +
                                std::to_string(threads) + " does not hold " + std::to_string(rows) + " rows of " +
                                std::to_string(row_packs) + " packs");
  }
  Rows of{};
  of.packs = row_packs;
  of.cluster = cluster;
  of.stacked = stacked;
  of.step = stacked ? teams * row_packs : lanes;
  of.items = items;
  of.groups = groups;
  of.group_step = stacked ? stride : lanes / 32;
  of.told_at = sums;
  of.sum_bytes = sum_bytes;
  of.cluster_bytes = ((stacked ? items * groups : groups) + cluster) * static_cast<Word>(sizeof(float));
  of.inverse_hidden = 1.0f / static_cast<float>(hidden);
  return of;
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

cudaError_t resident_teams(Word world, unsigned threads, unsigned cluster, int multiprocessors, int* teams) {
  *teams = 1 << 20;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const Share share : {Share::kOnePack, Share::kPacks}) {
      const void* kernel = fused_one_shot_kernel(dtype, world, share, cluster > 1);
      int fit = 0;
      cudaError_t error = cudaSuccess;
      if (cluster > 1) {
        const Configured configured({cluster, threads, false, cluster, kMaxShared}, nullptr);
        error = cudaOccupancyMaxActiveClusters(&fit, kernel, &configured.config);
      } else {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, static_cast<int>(threads + kStewards),
                                                              kMaxShared);
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
  const bool islands = world >= 4 && world % 2 == 0 && transport == Transport::kPush;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kIsland}) {
    if (algorithm == Algorithm::kIsland && !islands) continue;
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
