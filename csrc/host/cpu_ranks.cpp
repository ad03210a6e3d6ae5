#include "host/cpu_ranks.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

namespace pcie_allreduce::host {
namespace {

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(seconds * 1e9); }

}  // namespace

std::vector<char> fresh_slab(Word area_packs, Transport transport) {
  std::vector<char> image(slab_bytes(area_packs, transport), 0);
  Pack* first = reinterpret_cast<Pack*>(image.data() + kGreetingOffset);
  std::fill(first, reinterpret_cast<Pack*>(image.data() + polled_bytes(area_packs, transport)), empty_pack());
  return image;
}

CpuChannel::CpuChannel(Word rank, Word world, Word area_packs, double timeout, double warmup_timeout,
                       Transport transport, bool crowded, std::function<bool()> interrupted)
    : own_(SharedMemory::create(slab_bytes(area_packs, transport))),
      crowded_(crowded),
      interrupted_(std::move(interrupted)) {
  const std::vector<char> image = fresh_slab(area_packs, transport);
  std::copy(image.begin(), image.end(), own_.data());
  channel_.slab[rank] = own_.data();
  channel_.state = control_of(own_.data());
  channel_.transport = transport;
  channel_.record = &record_;
  channel_.rank = rank;
  channel_.world = world;
  channel_.make_room(area_packs);
  channel_.timeout_ns = nanoseconds(timeout);
  channel_.warmup_timeout_ns = nanoseconds(warmup_timeout);
}

void CpuChannel::open(const std::vector<std::string>& handles) {
  for (Word peer = 0; peer < channel_.world; ++peer) {
    if (peer == channel_.rank) continue;
    peers_.push_back(SharedMemory::open(handles.at(peer), own_.size()));
    channel_.slab[peer] = peers_.back().data();
  }
}

std::vector<Word> CpuChannel::exchange(double timeout) {
  Channel greeting = channel_;
  greeting.timeout_ns = greeting.warmup_timeout_ns = nanoseconds(timeout);
  std::vector<Word> verdict(kMaxWorld * kGreetingPacks, 0);
  cpu_lanes().exchange(greeting, verdict.data(), crowded_, *this);
  return verdict;
}

std::vector<Result> CpuChannel::measure(const Experiment& experiment, double timeout) {
  require_scratch(experiment, channel_.area_packs);
  Channel probed = channel_;
  probed.timeout_ns = probed.warmup_timeout_ns = nanoseconds(timeout);
  std::vector<Result> results(kProbeResults, Result{});
  run_experiment(probed, experiment, results.data(), crowded_, *this);
  return results;
}

bool CpuChannel::collective(const void* in, void* out, Word bytes, Algorithm algorithm, Dtype dtype) {
  require_room(algorithm, dtype, bytes);
  const Request request{in, out, bytes, signature_kind(algorithm, dtype), false};
  const bool chunks = algorithm == Algorithm::kReduceScatter || algorithm == Algorithm::kAllGather;
  if (chunks && channel_.transport != Transport::kPush) throw std::invalid_argument("chunks are pushed");
  const auto run = chunks                                   ? run_chunks
                   : channel_.transport == Transport::kPull ? run_pull
                   : channel_.staged()                      ? run_staged
                                                            : cpu_lanes().all_reduce;
  run(channel_, request, crowded_, *this);
  return record_.valid != 0;
}

bool CpuChannel::all_reduce_add_rms_norm(const void* in, void* out, Word bytes, Word hidden, const Norm& norm,
                                         Algorithm algorithm, Dtype dtype) {
  if (channel_.transport != Transport::kPush) throw std::invalid_argument("only pushes are fused with RMSNorm");
  require_rows(bytes, hidden, dtype, norm.fp8);
  require_room(algorithm, dtype, bytes);
  const Request request{in, out, bytes, signature_kind(algorithm, dtype), false, hidden};
  run_fused(channel_, request, norm, crowded_, *this);
  return record_.valid != 0;
}

void CpuChannel::require_room(Algorithm algorithm, Dtype dtype, Word bytes) const {
  if (own_.data() == nullptr) throw std::runtime_error("the channel is closed");
  if (packs_used(algorithm, dtype, channel_.world, bytes, channel_.transport, channel_.sum_copies) > channel_.room()) {
    throw std::invalid_argument(std::to_string(bytes) + " bytes do not fit the mailbox");
  }
}

Fault CpuChannel::look() {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Word peer = source_of(static_cast<Word>(i), channel_.rank);
    // Whoever left a word is gone for a reason of its own, maybe after this call: then its data is here, or on its way.
    const Word& word = control_of(own_.data())->abort[peer];
    if (std::atomic_ref<const Word>(word).load(std::memory_order_acquire) != 0 || !peers_[i].creator_gone()) continue;
    return {Reason::kGone, Stage::kGather, 1u << peer};
  }
  if (interrupted_()) return {Reason::kInterrupted, Stage::kGather, 1u << channel_.rank};
  return {};
}

const FaultRecord* CpuChannel::fault() const {
  return std::atomic_ref<const Word>(record_.valid).load(std::memory_order_acquire) != 0 ? &record_ : nullptr;
}

std::vector<PeerWait> CpuChannel::waits() const {
  if (own_.data() == nullptr) return std::vector<PeerWait>(channel_.world);  // a finalizer may have closed it already
  const PeerWait* waited = control_of(own_.data())->waited;
  return {waited, waited + channel_.world};
}

void CpuChannel::close() {
  if (own_.data() == nullptr) return;
  const Control* own = control_of(own_.data());
  const Word farewell = abort_word(Reason::kClosed, channel_.rank, own->block[0].call);
  for (Word peer = 0; peer < channel_.world; ++peer) {
    if (peer == channel_.rank || channel_.slab[peer] == nullptr) continue;
    Word* word = &control_of(channel_.slab[peer])->abort[channel_.rank];
    if (std::atomic_ref<Word>(*word).load(std::memory_order_relaxed) == 0) {
      std::atomic_ref<Word>(*word).store(farewell, std::memory_order_release);
    }
  }
  own_.unlink();
  own_.close();
  peers_.clear();
}

}  // namespace pcie_allreduce::host
