#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "cuda/slabs.h"
#include "host/cpu_ranks.h"

namespace pcie_allreduce::cuda {
namespace {

constexpr std::size_t kPresenceBytes = 4096;
constexpr std::size_t kIpcBytes = sizeof(cudaIpcMemHandle_t);

class PeerSlabs : public Slabs {
 public:
  PeerSlabs(int device, Word area_packs, Transport transport)
      : device_(device),
        own_(std::make_unique<DeviceMemory>(device, slab_bytes(area_packs, transport))),
        presence_(host::SharedMemory::create(kPresenceBytes)) {
    const DeviceScope scope(device);
    const std::vector<char> image = host::fresh_slab(area_packs, transport);
    require(cudaMemcpy(own_->data(), image.data(), image.size(), cudaMemcpyHostToDevice), "filling the mailbox");
  }

  char* own() const override { return own_->data(); }
  std::string handle() const override { return own_->handle() + presence_.name(); }
  char* open(const std::string& handle) override {
    if (handle.size() <= kIpcBytes) throw std::runtime_error("its handle is not usable");
    peer_presence_.push_back(host::SharedMemory::open(handle.substr(kIpcBytes), kPresenceBytes));
    peers_.emplace_back(device_, handle.substr(0, kIpcBytes));
    return peers_.back().data();
  }
  void forget_names() override { presence_.unlink(); }
  bool close(double patience) override {
    peers_.clear();
    presence_.close();
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience);
    const auto gone = [](const host::SharedMemory& peer) { return peer.creator_gone(); };
    bool all_gone = std::all_of(peer_presence_.begin(), peer_presence_.end(), gone);
    while (!all_gone && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      all_gone = std::all_of(peer_presence_.begin(), peer_presence_.end(), gone);
    }
    peer_presence_.clear();
    if (!all_gone) own_->leak();
    own_.reset();
    return all_gone;
  }
  void abandon() override {
    own_->leak();
    for (PeerMemory& peer : peers_) peer.leak();
    static_cast<void>(new host::SharedMemory(std::move(presence_)));  // present until the process ends
  }

 private:
  int device_;
  std::unique_ptr<DeviceMemory> own_;
  host::SharedMemory presence_;  // says until when this rank may still write into its peers' slabs
  std::vector<PeerMemory> peers_;
  std::vector<host::SharedMemory> peer_presence_;
};

}  // namespace

std::unique_ptr<Slabs> peer_slabs(int device, Word area_packs, Transport transport) {
  return std::make_unique<PeerSlabs>(device, area_packs, transport);
}

}  // namespace pcie_allreduce::cuda
