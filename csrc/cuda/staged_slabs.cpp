#include <algorithm>
#include <utility>

#include "cuda/slabs.h"
#include "host/cpu_ranks.h"
#include "host/placement.h"

namespace pcie_allreduce::cuda {
namespace {

// A shared segment that the GPUs of this process reach at the address that they are given.
class Registered {
 public:
  Registered(int device, host::SharedMemory memory) : memory_(std::move(memory)) {
    const DeviceScope scope(device);
    require(cudaHostRegister(memory_.data(), memory_.size(), cudaHostRegisterPortable | cudaHostRegisterMapped),
            "registering shared memory with CUDA");
    registered_ = memory_.data();
    void* seen = nullptr;
    require(cudaHostGetDevicePointer(&seen, registered_, 0), "asking where a GPU sees the shared memory");
    seen_ = static_cast<char*>(seen);
  }
  Registered(Registered&& other) noexcept
      : memory_(std::move(other.memory_)), registered_(std::exchange(other.registered_, nullptr)), seen_(other.seen_) {}
  Registered& operator=(Registered&&) = delete;
  ~Registered() {
    if (registered_ != nullptr) cudaHostUnregister(registered_);
  }

  host::SharedMemory& memory() { return memory_; }
  const host::SharedMemory& memory() const { return memory_; }
  char* seen_by_gpu() const { return seen_; }

 private:
  host::SharedMemory memory_;
  char* registered_ = nullptr;
  char* seen_ = nullptr;
};

int node_of(int device) {
  int node = -1;
  const bool told = cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device) == cudaSuccess;
  if (!told) static_cast<void>(cudaGetLastError());  // an older driver's; the slab lies somewhere, then
  return told ? node : -1;
}

// Near to the GPU that writes it. Pages lie where the thread runs that takes them.
host::SharedMemory fresh(int device, Word area_packs) {
  const host::RunsOn near(host::processors_of(node_of(device)));
  host::SharedMemory memory = host::SharedMemory::create(slab_bytes(area_packs, Transport::kStaged));
  const std::vector<char> image = host::fresh_slab(area_packs, Transport::kStaged);
  std::copy(image.begin(), image.end(), memory.data());
  return memory;
}

class StagedSlabs : public Slabs {
 public:
  StagedSlabs(int device, Word area_packs) : device_(device) {
    mapped_.push_back(std::make_unique<Registered>(device, fresh(device, area_packs)));
  }

  char* own() const override { return mapped_[0]->seen_by_gpu(); }
  std::string handle() const override { return mapped_[0]->memory().name(); }
  char* open(const std::string& handle) override {
    const std::size_t bytes = mapped_[0]->memory().size();
    mapped_.push_back(std::make_unique<Registered>(device_, host::SharedMemory::open(handle, bytes)));
    return mapped_.back()->seen_by_gpu();
  }
  void forget_names() override { mapped_[0]->memory().unlink(); }
  bool close(double) override {  // a peer's mapping is its own: nobody is waited for
    mapped_.clear();
    return true;
  }
  void abandon() override {
    for (std::unique_ptr<Registered>& memory : mapped_) static_cast<void>(memory.release());
  }

 private:
  int device_;
  std::vector<std::unique_ptr<Registered>> mapped_;  // its own first
};

}  // namespace

std::unique_ptr<Slabs> staged_slabs(int device, Word area_packs) {
  return std::make_unique<StagedSlabs>(device, area_packs);
}

}  // namespace pcie_allreduce::cuda
