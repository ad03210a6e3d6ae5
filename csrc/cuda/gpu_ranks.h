// The GPU executor: a rank is a GPU (or a share of one), its slab lies in memory that its peers map, and a call is one
// launch on the caller's stream.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda/slabs.h"

namespace pcie_allreduce::cuda {

class GpuChannel {
 public:
  GpuChannel(int device, Word rank, Word world, Word area_packs, double timeout, double warmup_timeout,
             Transport transport);
  ~GpuChannel();

  std::string handle() const { return slabs_->handle(); }
  void open(const std::vector<std::string>& handles);  // one a rank; this rank's own is not opened
  void forget_names() { slabs_->forget_names(); }
  void set_islands(Word first) { channel_.islands = islands_of(first, channel_.world, channel_.rank); }
  void set_sum_copies(Word copies, Word own) { set_copies(channel_, copies, own); }
  std::vector<Word> exchange(double timeout);  // Greeting of kMaxWorld x kGreetingPacks; waits for the GPU
  // Before the first call. kPing goes with any channel, the others with one of kProbeAreaPacks that makes no calls.
  std::vector<Result> measure(const Experiment& experiment, double timeout);
  // `algorithm` says which; `bytes` as Request has them. True: an earlier call has failed, and nothing was launched.
  bool collective(const void* in, void* out, Word bytes, Algorithm algorithm, Dtype dtype, unsigned blocks,
                  unsigned threads, cudaStream_t stream);
  // An all-reduce, then residual and RMSNorm over rows of `hidden` elements; `out` takes the sum and the residual. In
  // `teams` of `cluster` blocks, where there are owners one for each row; all memory 16-byte aligned.
  bool all_reduce_add_rms_norm(const void* in, void* out, Word bytes, Word hidden, const Norm& norm,
                               Algorithm algorithm, Dtype dtype, unsigned teams, unsigned cluster, unsigned threads,
                               cudaStream_t stream);
  std::optional<FaultRecord> fault() const;  // also from another thread, beside close()
  std::vector<PeerWait> waits() const;       // one a rank; read beside running kernels
  // Synchronises, tells the peers not to wait for this rank any more, and unmaps them. The slab is freed once every
  // peer has done so too, or has died; false: one had not after `patience` seconds, or this GPU could not be waited
  // for, and the slab is kept until the process ends. All else that CUDA gave is let go of here and not by the
  // destructor, which may come at any time, also while a graph is captured, and then would spoil it.
  bool close(double patience);
  int resident_blocks(unsigned threads) const;  // of the largest kernel, on the whole GPU
  // Of a fused kernel; 0: this GPU has no clusters.
  int resident_teams(Algorithm algorithm, unsigned threads, unsigned cluster) const;

 private:
  void order_behind_last_stream(cudaStream_t stream);
  void require_room(Algorithm algorithm, Dtype dtype, Word bytes) const;
  void launch_ordered(const void* kernel, const void* params, const LaunchShape& shape, bool captured,
                      cudaStream_t stream);
  int multiprocessors() const;
  bool failed() const;
  void abandon();  // all memory is kept until the process ends: a kernel may still use it

  int device_;
  std::unique_ptr<Slabs> slabs_;
  std::unique_ptr<DeviceMemory> state_;    // of a staged channel: what this rank keeps from call to call
  std::unique_ptr<MappedMemory> host_;     // the fault record, then the greetings' verdict
  std::unique_ptr<MappedMemory> results_;  // of experiments
  mutable std::mutex record_turn_;         // close() takes the record's memory from who reads it
  FaultRecord last_record_{};              // of a closed channel
  Channel channel_{};
  cudaEvent_t last_call_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  bool called_ = false;
  bool dependent_launch_ = false;
  bool closed_ = false;
};

}  // namespace pcie_allreduce::cuda
