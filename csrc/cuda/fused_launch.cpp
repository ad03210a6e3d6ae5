// How the rows of a fused call are shared among blocks: checked and computed once, on the host.
#include <algorithm>

#include "cuda/launch.h"
#include "protocol/dispatch.h"
#include "protocol/owners.h"

namespace pcie_allreduce::cuda {
namespace {

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

Rows parts_of(Word owners, Word hidden, Word row_packs, Word rows, unsigned cluster, unsigned threads) {
  Rows of{};
  of.packs = row_packs;
  of.part = whole_lines((row_packs + owners - 1) / owners);
  of.count = rows;
  of.cluster = cluster;
  of.items = 1;
  of.part_groups = (of.part + 31) / 32;
  of.groups = owners * of.part_groups;
  of.told_at = (of.groups + 3) / 4 * 4;  // sums are read four at a time
  of.sum_bytes = (of.told_at + kMaxCluster) * static_cast<Word>(sizeof(float));
  of.cluster_bytes = (of.groups + cluster) * static_cast<Word>(sizeof(float));
  of.inverse_hidden = 1.0f / static_cast<float>(hidden);
  // A warp has lanes of one owner, and a cluster of one block would be none.
  if (cluster < 2 || cluster > kMaxCluster || rows * cluster > kMaxBlocks || threads == 0 ||
      threads % (32 * owners) != 0 || threads > kMaxThreads || cluster * threads / owners < of.part) {
    throw std::invalid_argument("clusters of " + std::to_string(cluster) + " x " + std::to_string(threads) +
                                " threads do not hold " + std::to_string(rows) + " rows of " +
                                std::to_string(row_packs) + " packs, of which each of " + std::to_string(owners) +
                                " owners has " + std::to_string(of.part));
  }
  return of;
}

}  // namespace

FusedLaunch fused_launch(Algorithm algorithm, Dtype dtype, Word world, Word bytes, Word hidden, LaunchShape shape) {
  const Word row_bytes = hidden * element_bytes(dtype);
  const Word packs = row_bytes / sizeof(Pack);
  const Word count = bytes / row_bytes;
  const unsigned teams = shape.blocks;
  const Word owners = owners_of(algorithm, world);
  if (owners > 1) {
    const Rows rows = parts_of(owners, hidden, packs, count, shape.cluster, shape.threads);
    shape.blocks = count * shape.cluster;
    shape.shared = rows.sum_bytes;
    const Word laid_out = RowParts{packs, rows.part, count}.units(owners) * static_cast<Word>(sizeof(Pack));
    return {fused_kernel_of(algorithm, dtype, world, Share::kOnePack, true), rows, shape, laid_out};
  }
  const Rows rows = rows_of(world, hidden, packs, count, teams, shape.cluster, shape.threads);
  shape.blocks = teams * shape.cluster;
  shape.shared = rows.sum_bytes + (rows.items - 1) * shape.threads * static_cast<unsigned>(sizeof(Pack));
  const Share share = rows.items == 1 ? Share::kOnePack : Share::kPacks;
  return {fused_kernel_of(algorithm, dtype, world, share, shape.cluster > 1), rows, shape, bytes};
}

}  // namespace pcie_allreduce::cuda
