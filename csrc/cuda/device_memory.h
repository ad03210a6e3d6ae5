// One rank's slab in GPU memory, exported to its peers by CUDA IPC. The caller's tensors are never exported, so the
// allocator that made them does not matter.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace pcie_allreduce::cuda {

// Throws std::runtime_error: "what: cudaErrorName: description".
void require(cudaError_t error, const std::string& what);

// Makes a device current for a scope; restores the caller's.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

class DeviceMemory {
 public:
  DeviceMemory(int device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return data_; }
  std::string handle() const;
  void leak() { data_ = nullptr; }  // a peer may still write to it: the process's end frees it

 private:
  int device_;
  char* data_ = nullptr;
};

// A peer's slab, mapped into this process.
class PeerMemory {
 public:
  PeerMemory(int device, const std::string& handle);
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept : device_(other.device_), data_(other.data_) { other.data_ = nullptr; }
  PeerMemory& operator=(PeerMemory&&) = delete;

  char* data() const { return data_; }
  void leak() { data_ = nullptr; }

 private:
  int device_;
  char* data_ = nullptr;
};

// Host memory that kernels write and the host reads at any time.
class MappedMemory {
 public:
  MappedMemory(int device, std::size_t bytes);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace pcie_allreduce::cuda
