// The only door between .cu and .cpp: parameter structs and launchers. All return what the CUDA runtime returned.
#pragma once

#include <cuda_runtime_api.h>

#include "protocol/dispatch.h"
#include "protocol/probe.h"

namespace pcie_allreduce::cuda {

// One kernel argument; a graph that captured it replays it unchanged.
struct CallParams {
  Channel channel;
  Request request;
};

struct LaunchShape {
  unsigned blocks;
  unsigned threads;  // that move data; the launcher adds the stewards
  bool dependent;    // programmatic dependent launch: the grid starts while its predecessor ends (sm_90 and later)
};

constexpr unsigned kMaxThreads = 256;  // that move data
constexpr unsigned kStewards = 32;     // the last warp: signatures, state

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

// A kernel takes CallParams.
const void* one_shot_kernel(Dtype dtype, Word world, Share share);
const void* two_shot_kernel(Dtype dtype, Word world, Share share);
const void* island_kernel(Dtype dtype, Word world, Share share);                       // worlds 4, 6 and 8
const void* staged_kernel(Algorithm algorithm, Dtype dtype, Word world, Share share);  // one-shot and two-shot
const void* kernel_of(Algorithm algorithm, Dtype dtype, Word world, Share share, bool staged);

cudaError_t launch(const void* kernel, const CallParams& params, const LaunchShape& shape, cudaStream_t stream);
// Blocks of `threads` (and the stewards) that one multiprocessor holds of whichever kernel of this world is largest.
cudaError_t blocks_per_multiprocessor(Word world, unsigned threads, bool staged, int* blocks);

// verdict: kMaxWorld * kGreetingPacks words of mapped host memory.
cudaError_t launch_exchange(const Channel& channel, Word* verdict, cudaStream_t stream);

// results: kProbeResults of them in mapped host memory.
cudaError_t launch_experiment(const Channel& channel, const Experiment& experiment, Result* results,
                              cudaStream_t stream);

// The benchmark's floor: one kernel that copies the payload, 16 bytes a thread.
cudaError_t launch_copy_packs(void* to, const void* from, Word packs, cudaStream_t stream);

}  // namespace pcie_allreduce::cuda
