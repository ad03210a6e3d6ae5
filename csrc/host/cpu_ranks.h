// The CPU executor: ranks are processes, their slabs lie in shared memory, and the calling thread is the rank's one
// lane.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/cpu_lanes.h"
#include "host/cpu_probe.h"
#include "host/shared_memory.h"

namespace pcie_allreduce::host {

// What a slab must hold before the first call: EMPTY in everything that is polled, zero in all counters. Fresh memory
// reads as zero, and zero is valid data.
std::vector<char> fresh_slab(Word area_packs, Transport transport);

class CpuChannel : private Watch {
 public:
  // crowded: more ranks than cores; interrupted: asked now and then while a call waits; true ends the wait.
  CpuChannel(Word rank, Word world, Word area_packs, double timeout, double warmup_timeout, Transport transport,
             bool crowded, std::function<bool()> interrupted);

  std::string handle() const { return own_.name(); }
  void open(const std::vector<std::string>& handles);  // one a rank; this rank's own is not opened
  void forget_names() { own_.unlink(); }
  void set_islands(Word first) { channel_.islands = islands_of(first, channel_.world, channel_.rank); }
  void set_sum_copies(Word copies, Word own) { set_copies(channel_, copies, own); }
  std::vector<Word> exchange(double timeout);  // Greeting of kMaxWorld x kGreetingPacks
  // Before the first call. kPing goes with any channel, the others with one of kProbeAreaPacks that makes no calls.
  std::vector<Result> measure(const Experiment& experiment, double timeout);
  // `algorithm` says which; `bytes` as Request has them. True: it failed.
  bool collective(const void* in, void* out, Word bytes, Algorithm algorithm, Dtype dtype);
  // An all-reduce, then residual and RMSNorm over rows of `hidden` elements; `out` takes the sum and the residual.
  bool all_reduce_add_rms_norm(const void* in, void* out, Word bytes, Word hidden, const Norm& norm,
                               Algorithm algorithm, Dtype dtype);
  const FaultRecord* fault() const;
  std::vector<PeerWait> waits() const;  // one a rank
  // Tells the peers not to wait for this rank any more, and unmaps. A peer's mapping is its own: nobody is waited for.
  void close();

 private:
  Fault look() override;
  void require_room(Algorithm algorithm, Dtype dtype, Word bytes) const;

  SharedMemory own_;
  std::vector<SharedMemory> peers_;
  FaultRecord record_{};
  Channel channel_{};
  bool crowded_;
  std::function<bool()> interrupted_;
};

}  // namespace pcie_allreduce::host
