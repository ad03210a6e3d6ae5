// The CPU executor: ranks are processes, their slabs lie in shared memory, and the calling thread is the rank's one lane.
#pragma once

#include <string>
#include <vector>

#include "host/shared_memory.h"
#include "protocol/dispatch.h"

namespace pcie_allreduce::host {

// What a slab must hold before the first call: EMPTY in everything that is polled, zero in all counters. Fresh memory
// reads as zero, and zero is valid data.
std::vector<char> fresh_slab(Word area_packs);

class CpuChannel {
 public:
  CpuChannel(Word rank, Word world, Word area_packs, double timeout, double warmup_timeout, bool crowded);

  std::string handle() const { return own_.name(); }
  void open(const std::vector<std::string>& handles);  // one a rank; this rank's own is not opened
  void forget_names() { own_.unlink(); }
  std::vector<Word> exchange(double timeout);  // Greeting of kMaxWorld x kGreetingPacks
  bool all_reduce(const void* in, void* out, Word bytes, Algorithm algorithm, Dtype dtype);  // true: it failed
  const FaultRecord* fault() const;
  // Tells the peers not to wait for this rank any more, and unmaps. A peer's mapping is its own: nobody is waited for.
  void close();
  std::size_t bytes() const { return slab_bytes(channel_.area_packs); }

 private:
  SharedMemory own_;
  std::vector<SharedMemory> peers_;
  FaultRecord record_{};
  Channel channel_{};
  bool crowded_;
};

}  // namespace pcie_allreduce::host
