// The only door between .cu and .cpp: parameter structs and launchers. All return what the CUDA runtime returned.
#pragma once

#include <cuda_runtime_api.h>

#include "protocol/norm.h"
#include "protocol/probe.h"

namespace pcie_allreduce::cuda {

// One kernel argument; a graph that captured it replays it unchanged.
struct CallParams {
  Channel channel;
  Request request;
};

constexpr unsigned kMaxThreads = 256;  // that move data
constexpr unsigned kMaxCluster = 8;    // what every GPU with clusters can do
constexpr unsigned kMaxShared = 32 * 1024;
constexpr unsigned kMaxPartShared = 1024;  // of a fused call whose owners have parts of rows
constexpr unsigned kStewards = 32;         // the last warp: signatures, state
// Of a fused call's block that has rows for itself: 64 registers hold the packs of few ranks alone.
constexpr unsigned max_wide_threads(Word world) { return world <= 3 ? 992 : 608; }

// How teams of blocks share the rows of a fused call. Computed once, on the host.
struct Rows {
  Word packs;          // of a row
  Word part;           // of an algorithm with owners: of them, those of one owner
  Word count;          // ... rows
  Word part_groups;    // ... sums of squares of a part
  Word cluster;        // blocks of a team
  Word stacked;        // a lane has one pack of every row of its team; else some packs of the team's one row
  Word step;           // from one pack of a lane to its next
  Word items;          // packs of a lane, at most
  Word groups;         // sums of squares of a row: one for 32 packs
  Word group_step;     // from the sum that a warp writes for one item to that for the next
  Word told_at;        // where, behind the sums, the blocks of a cluster say whether they have failed
  Word sum_bytes;      // of shared memory that all of these take: whole packs
  Word cluster_bytes;  // that come to a block of a cluster
  float inverse_hidden;
};

struct FusedParams {
  Channel channel;
  Request request;
  Norm norm;
  Rows rows;
};

struct LaunchShape {
  unsigned blocks;
  unsigned threads;  // that move data; the launcher adds the stewards
  bool dependent;    // programmatic dependent launch: the grid starts while its predecessor ends (sm_90 and later)
  unsigned cluster = 1;
  unsigned shared = 0;  // bytes a block
};

// What a lane has to do at most. The less, the shorter the code, on which a call's time hangs.
enum class Share {
  kOnePack,
  kPacks,
  kElements,  // of memory that is not 16-byte aligned or not a whole number of packs
};
template <class Visit>
auto dispatch_share(Share share, Visit&& visit) {
  switch (share) {
    case Share::kOnePack: return visit.template operator()<Share::kOnePack>();
    case Share::kPacks: return visit.template operator()<Share::kPacks>();
    default: return visit.template operator()<Share::kElements>();
  }
}
// Where the link is the limit, not the code: a kernel for lanes of one pack would be one more.
template <class Visit>
auto dispatch_link(Share share, Visit&& visit) {
  return share == Share::kElements ? visit.template operator()<Share::kElements>()
                                   : visit.template operator()<Share::kPacks>();
}

// A kernel takes CallParams.
const void* one_shot_kernel(Dtype dtype, Word world, Share share);
const void* two_shot_kernel(Dtype dtype, Word world, Share share);
const void* island_kernel(Dtype dtype, Word world, Share share);  // worlds 4, 6 and 8
const void* reduce_scatter_kernel(Dtype dtype, Word world, Share share);
const void* all_gather_kernel(Word world, Share share);                                // of any dtype
const void* staged_kernel(Algorithm algorithm, Dtype dtype, Word world, Share share);  // one-shot and two-shot
const void* pull_kernel(Algorithm algorithm, Dtype dtype, Word world, Share share);    // one-shot and two-shot
const void* kernel_of(Algorithm algorithm, Dtype dtype, Word world, Share share, Transport transport);

// A fused kernel takes FusedParams. Where there are owners, it runs in clusters, and a lane has one pack.
const void* fused_one_shot_kernel(Dtype dtype, Word world, Share share, bool clustered);
const void* fused_two_shot_kernel(Dtype dtype, Word world);
const void* fused_island_kernel(Dtype dtype, Word world);  // worlds 4, 6 and 8
const void* fused_kernel_of(Algorithm algorithm, Dtype dtype, Word world, Share share, bool clustered);

// How a fused call is launched. std::invalid_argument where the shape, in teams and blocks of one, does not hold it.
struct FusedLaunch {
  const void* kernel;
  Rows rows;
  LaunchShape shape;
  Word laid_out;  // bytes that the mailbox must have room for: parts of rows are whole lines
};
FusedLaunch fused_launch(Algorithm algorithm, Dtype dtype, Word world, Word bytes, Word hidden, LaunchShape teams);

// `params`: of the struct that the kernel takes.
cudaError_t launch(const void* kernel, const void* params, const LaunchShape& shape, cudaStream_t stream);
// Blocks of `threads` (and the stewards) that one multiprocessor holds of whichever kernel of this world is largest.
cudaError_t blocks_per_multiprocessor(Word world, unsigned threads, Transport transport, int* blocks);

// The same of fused kernels, in teams of `cluster` blocks, with as much shared memory as they may have: on the whole
// GPU.
cudaError_t resident_teams(Algorithm algorithm, Word world, unsigned threads, unsigned cluster, int multiprocessors,
                           int* teams);

// verdict: kMaxWorld * kGreetingPacks words of mapped host memory.
cudaError_t launch_exchange(const Channel& channel, Word* verdict, cudaStream_t stream);

// results: kProbeResults of them in mapped host memory.
cudaError_t launch_experiment(const Channel& channel, const Experiment& experiment, Result* results,
                              cudaStream_t stream);

// Residual and RMSNorm alone, 16-byte aligned; rows of at most kMaxHidden elements.
cudaError_t launch_add_rms_norm(const void* in, void* out, Word rows, Word hidden, const Norm& norm, Dtype dtype,
                                bool dependent, cudaStream_t stream);

// The benchmark's floor: one kernel that copies the payload, 16 bytes a thread.
cudaError_t launch_copy_packs(void* to, const void* from, Word packs, cudaStream_t stream);

}  // namespace pcie_allreduce::cuda
