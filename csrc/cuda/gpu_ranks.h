// The GPU executor: a rank is a GPU (or a share of one), its slab lies in GPU memory that its peers map, and a call is
// one launch on the caller's stream.
#pragma once

#include <string>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/launch.h"
#include "host/shared_memory.h"

namespace pcie_allreduce::cuda {

class GpuChannel {
 public:
  GpuChannel(int device, Word rank, Word world, Word area_packs, double timeout, double warmup_timeout);
  ~GpuChannel();

  std::string handle() const;                          // of the slab and of the presence
  void open(const std::vector<std::string>& handles);  // one a rank; this rank's own is not opened
  void forget_names() { presence_.unlink(); }
  void set_islands(Word first) { channel_.islands = islands_of(first, channel_.world, channel_.rank); }
  std::vector<Word> exchange(double timeout);  // Greeting of kMaxWorld x kGreetingPacks; waits for the GPU
  // True: an earlier call has failed, and nothing was launched.
  bool all_reduce(const void* in, void* out, Word bytes, Algorithm algorithm, Dtype dtype, unsigned blocks,
                  unsigned threads, cudaStream_t stream);
  const FaultRecord* fault() const;
  std::vector<PeerWait> waits() const;  // one a rank; read beside running kernels
  // Synchronises, tells the peers not to wait for this rank any more, and unmaps them. The slab is freed once every
  // peer has done so too, or has died; false: one had not after `patience` seconds, and the slab is kept until the
  // process ends.
  bool close(double patience);
  int resident_blocks(unsigned threads) const;  // of the largest kernel, on the whole GPU
  std::size_t bytes() const { return slab_bytes(channel_.area_packs); }

 private:
  void order_behind_last_stream(cudaStream_t stream);

  int device_;
  DeviceMemory own_;
  MappedMemory host_;            // the fault record, then the greetings' verdict
  host::SharedMemory presence_;  // says until when this rank may still write into its peers' slabs
  std::vector<PeerMemory> peers_;
  std::vector<host::SharedMemory> peer_presence_;
  Channel channel_{};
  cudaEvent_t last_call_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  bool called_ = false;
  bool dependent_launch_ = false;
  bool closed_ = false;
};

}  // namespace pcie_allreduce::cuda
