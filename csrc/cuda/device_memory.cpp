#include "cuda/device_memory.h"

#include <cstring>
#include <stdexcept>

namespace pcie_allreduce::cuda {

void require(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the runtime keeps it for the next caller otherwise
  throw std::runtime_error(what + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

namespace {

// What CUDA says of a refused handle is a code; what refuses them is mostly one of these.
void require_ipc(cudaError_t error, const std::string& what) {
  require(error, what +
                     " (refused mostly where ranks run in containers without a common IPC and PID namespace, as "
                     "different users, under WSL, or on a virtual GPU; `pcie-allreduce doctor` looks for these)");
}

}  // namespace

DeviceScope::DeviceScope(int device) {
  require(cudaGetDevice(&before_), "asking for the current GPU");
  if (before_ != device) require(cudaSetDevice(device), "selecting GPU " + std::to_string(device));
}

DeviceScope::~DeviceScope() { cudaSetDevice(before_); }

DeviceMemory::DeviceMemory(int device, std::size_t bytes) : device_(device) {
  const DeviceScope scope(device);
  void* data = nullptr;
  require(cudaMalloc(&data, bytes), "allocating " + std::to_string(bytes) + " bytes on GPU " + std::to_string(device));
  data_ = static_cast<char*>(data);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

std::string DeviceMemory::handle() const {
  const DeviceScope scope(device_);
  cudaIpcMemHandle_t handle;
  require_ipc(cudaIpcGetMemHandle(&handle, data_), "exporting GPU memory by CUDA IPC");
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

PeerMemory::PeerMemory(int device, const std::string& bytes) : device_(device) {
  const DeviceScope scope(device);
  cudaIpcMemHandle_t handle;
  if (bytes.size() != sizeof handle) {
    throw std::runtime_error("a CUDA IPC handle has " + std::to_string(sizeof handle) + " bytes, a peer sent " +
                             std::to_string(bytes.size()));
  }
  std::memcpy(&handle, bytes.data(), sizeof handle);
  void* data = nullptr;
  require_ipc(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess),
              "opening a peer's GPU memory by CUDA IPC");
  data_ = static_cast<char*>(data);
}

PeerMemory::~PeerMemory() {
  if (data_ != nullptr) cudaIpcCloseMemHandle(data_);
}

MappedMemory::MappedMemory(int device, std::size_t bytes) {
  const DeviceScope scope(device);
  require(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "allocating pinned host memory");
  std::memset(data_, 0, bytes);
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

}  // namespace pcie_allreduce::cuda
