// Where the slabs of a channel's ranks lie, as this rank's kernels see them: in the GPUs, or staged in host memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device_memory.h"
#include "host/shared_memory.h"
#include "protocol/mailbox.h"

namespace pcie_allreduce::cuda {

class Slabs {
 public:
  virtual ~Slabs() = default;
  virtual char* own() const = 0;
  virtual std::string handle() const = 0;             // what a peer needs to open this rank's slab
  virtual char* open(const std::string& handle) = 0;  // a peer's; std::runtime_error where the handle is none
  virtual void forget_names() = 0;
  // The GPU is quiet, and peers know that this rank leaves. False: this rank's slab is kept until the process ends,
  // because after `patience` seconds a peer may still write to it.
  virtual bool close(double patience) = 0;
  // Without close() nobody knows who still writes. All is kept until the process ends, and CUDA is not called.
  virtual void abandon() = 0;
};

// In GPU memory, exported by CUDA IPC.
std::unique_ptr<Slabs> peer_slabs(int device, Word area_packs, Transport transport);
// In shared memory, registered with CUDA in every process.
std::unique_ptr<Slabs> staged_slabs(int device, Word area_packs);

}  // namespace pcie_allreduce::cuda
