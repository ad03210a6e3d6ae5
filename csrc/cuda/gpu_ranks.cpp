#include "cuda/gpu_ranks.h"

#include <atomic>
#include <cstring>
#include <stdexcept>

namespace pcie_allreduce::cuda {
namespace {

constexpr std::size_t kVerdictOffset = sizeof(FaultRecord);
constexpr std::size_t kHostBytes = kVerdictOffset + kMaxWorld * kGreetingPacks * sizeof(Word);

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(seconds * 1e9); }

bool captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  require(cudaStreamIsCapturing(stream, &status), "asking whether the stream is being captured");
  return status == cudaStreamCaptureStatusActive;
}

// On a stream of its own, and waits for it.
template <class Start>
void run_to_end(Start&& start, const std::string& what) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  cudaError_t error = start(stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  require(error, what);
}

}  // namespace

GpuChannel::GpuChannel(int device, Word rank, Word world, Word area_packs, double timeout, double warmup_timeout,
                       Transport transport)
    : device_(device),
      slabs_(transport == Transport::kStaged ? staged_slabs(device, area_packs)
                                             : peer_slabs(device, area_packs, transport)),
      host_(std::make_unique<MappedMemory>(device, kHostBytes)) {
  const DeviceScope scope(device);
  channel_.slab[rank] = slabs_->own();
  channel_.state = control_of(slabs_->own());
  if (transport == Transport::kStaged) {
    state_ = std::make_unique<DeviceMemory>(device, sizeof(Control));
    require(cudaMemset(state_->data(), 0, sizeof(Control)), "clearing the state of the calls");
    channel_.state = control_of(state_->data());
  }
  // Both fills may still be under way, and the streams of the calls wait for no other stream.
  require(cudaDeviceSynchronize(), "filling the mailbox");
  require(cudaEventCreateWithFlags(&last_call_, cudaEventDisableTiming), "creating an event");
  int major = 0;
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the architecture");
  dependent_launch_ = major >= 9;
  channel_.record = static_cast<FaultRecord*>(host_->data());
  channel_.rank = rank;
  channel_.world = world;
  channel_.transport = transport;
  channel_.make_room(area_packs);
  channel_.timeout_ns = nanoseconds(timeout);
  channel_.warmup_timeout_ns = nanoseconds(warmup_timeout);
}

GpuChannel::~GpuChannel() {
  if (!closed_) abandon();
}

void GpuChannel::abandon() {
  slabs_->abandon();
  if (state_ != nullptr) state_->leak();
  static_cast<void>(host_.release());
  static_cast<void>(results_.release());
}

void GpuChannel::open(const std::vector<std::string>& handles) {
  for (Word peer = 0; peer < channel_.world; ++peer) {
    if (peer == channel_.rank) continue;
    try {
      channel_.slab[peer] = slabs_->open(handles.at(peer));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error("the mailbox of rank " + std::to_string(peer) + ": " + error.what());
    }
  }
}

std::vector<Word> GpuChannel::exchange(double timeout) {
  const DeviceScope scope(device_);
  Channel greeting = channel_;
  greeting.timeout_ns = greeting.warmup_timeout_ns = nanoseconds(timeout);
  Word* verdict = reinterpret_cast<Word*>(static_cast<char*>(host_->data()) + kVerdictOffset);
  run_to_end([&](cudaStream_t stream) { return launch_exchange(greeting, verdict, stream); },
             "exchanging greetings with the peers");
  return {verdict, verdict + kMaxWorld * kGreetingPacks};
}

std::vector<Result> GpuChannel::measure(const Experiment& experiment, double timeout) {
  require_scratch(experiment, channel_.area_packs);
  const DeviceScope scope(device_);
  constexpr std::size_t kBytes = kProbeResults * sizeof(Result);
  if (results_ == nullptr) results_ = std::make_unique<MappedMemory>(device_, kBytes);
  std::memset(results_->data(), 0, kBytes);
  Channel probed = channel_;
  probed.timeout_ns = probed.warmup_timeout_ns = nanoseconds(timeout);
  Result* results = static_cast<Result*>(results_->data());
  run_to_end([&](cudaStream_t stream) { return launch_experiment(probed, experiment, results, stream); },
             "measuring with the peers");
  return {results, results + kProbeResults};
}

void GpuChannel::order_behind_last_stream(cudaStream_t stream) {
  if (called_ && stream != last_stream_) {
    require(cudaStreamWaitEvent(stream, last_call_, 0), "ordering the call behind the last stream's");
  }
  last_stream_ = stream;
  called_ = true;
}

void GpuChannel::require_room(Algorithm algorithm, Dtype dtype, Word bytes) const {
  if (closed_) throw std::runtime_error("the channel is closed");
  if (packs_used(algorithm, dtype, channel_.world, bytes, channel_.transport, channel_.sum_copies) > channel_.room()) {
    throw std::invalid_argument(std::to_string(bytes) + " bytes do not fit the mailbox");
  }
}

// Inside a capture the order among streams is the graph's, and the event would become part of it.
void GpuChannel::launch_ordered(const void* kernel, const void* params, const LaunchShape& shape, bool captured,
                                cudaStream_t stream) {
  if (!captured) order_behind_last_stream(stream);
  require(launch(kernel, params, shape, stream), "launching a call");
  if (!captured) require(cudaEventRecord(last_call_, stream), "recording an event");
}

bool GpuChannel::collective(const void* in, void* out, Word bytes, Algorithm algorithm, Dtype dtype, unsigned blocks,
                            unsigned threads, cudaStream_t stream) {
  if (blocks == 0 || blocks > kMaxBlocks || threads == 0 || threads > kMaxThreads) {
    throw std::invalid_argument("launch shape " + std::to_string(blocks) + " x " + std::to_string(threads) +
                                " is not within " + std::to_string(kMaxBlocks) + " x " + std::to_string(kMaxThreads));
  }
  require_room(algorithm, dtype, bytes);
  if (failed()) return true;
  const DeviceScope scope(device_);
  const bool captured = captures(stream);
  const Word shape = channel_.transport == Transport::kPull ? blocks << 16 | threads : kNoRows;
  const CallParams params{channel_, {in, out, bytes, signature_kind(algorithm, dtype), captured, shape}};
  const bool ragged =
      (reinterpret_cast<std::uintptr_t>(in) | reinterpret_cast<std::uintptr_t>(out) | bytes) % sizeof(Pack) != 0;
  const Word owners = channel_.transport == Transport::kPush ? owners_of(algorithm, channel_.world) : 1;
  if (owners > 1 && threads % (owners * 32) != 0) {
    throw std::invalid_argument(std::to_string(threads) + " threads a block are not as many whole warps of each of " +
                                std::to_string(owners) + " owners");
  }
  const Word at_once = blocks * (threads / owners);
  const bool once = positions(algorithm, channel_.world, bytes) <= at_once;
  const Share share = ragged ? Share::kElements : (once ? Share::kOnePack : Share::kPacks);
  const void* kernel = kernel_of(algorithm, dtype, channel_.world, share, channel_.transport);
  const unsigned rearming = channel_.staged() ? 1 : 0;
  launch_ordered(kernel, &params, {blocks + rearming, threads, dependent_launch_}, captured, stream);
  return false;
}

bool GpuChannel::all_reduce_add_rms_norm(const void* in, void* out, Word bytes, Word hidden, const Norm& norm,
                                         Algorithm algorithm, Dtype dtype, unsigned teams, unsigned cluster,
                                         unsigned threads, cudaStream_t stream) {
  require_rows(bytes, hidden, dtype, norm.fp8);
  if (channel_.transport != Transport::kPush) throw std::invalid_argument("only pushes are fused with RMSNorm");
  for (const void* memory :
       {in, static_cast<const void*>(out), norm.residual, norm.weight, static_cast<const void*>(norm.normed)}) {
    if (reinterpret_cast<std::uintptr_t>(memory) % sizeof(Pack) != 0) {
      throw std::invalid_argument("a fused call needs memory aligned to 16 bytes");
    }
  }
  const FusedLaunch launch = fused_launch(algorithm, dtype, channel_.world, bytes, hidden,
                                          LaunchShape{teams, threads, dependent_launch_, cluster});
  if (norm.fp8 == Fp8::kGroups && launch.rows.part % group_packs(element_bytes(dtype)) != 0) {
    throw std::invalid_argument("parts of " + std::to_string(launch.rows.part) + " packs of a row are no whole groups");
  }
  require_room(algorithm, dtype, launch.laid_out);
  if (failed()) return true;
  const DeviceScope scope(device_);
  const bool captured = captures(stream);
  const Request request{in, out, bytes, signature_kind(algorithm, dtype), captured, hidden};
  const FusedParams params{channel_, request, norm, launch.rows};
  launch_ordered(launch.kernel, &params, launch.shape, captured, stream);
  return false;
}

bool GpuChannel::failed() const {
  return std::atomic_ref<const Word>(channel_.record->valid).load(std::memory_order_acquire) != 0;
}

std::optional<FaultRecord> GpuChannel::fault() const {
  const std::lock_guard lock(record_turn_);
  return failed() ? std::optional(*channel_.record) : std::nullopt;
}

std::vector<PeerWait> GpuChannel::waits() const {
  if (closed_) return std::vector<PeerWait>(channel_.world);  // a finalizer may have closed it already
  const DeviceScope scope(device_);
  std::vector<PeerWait> waited(channel_.world);
  const auto copy = [&](cudaStream_t stream) {
    return cudaMemcpyAsync(waited.data(), channel_.state->waited, waited.size() * sizeof(PeerWait),
                           cudaMemcpyDeviceToHost, stream);
  };
  run_to_end(copy, "reading how long peers were waited for");
  return waited;
}

bool GpuChannel::close(double patience) {
  if (closed_) return true;
  const DeviceScope scope(device_);
  // An earlier error is the caller's to find; here only quiet matters.
  const bool quiet = cudaDeviceSynchronize() == cudaSuccess;
  Control control{};
  cudaMemcpy(&control, channel_.state, sizeof control, cudaMemcpyDeviceToHost);
  const Word farewell = abort_word(Reason::kClosed, channel_.rank, control.block[0].call);
  for (Word peer = 0; peer < channel_.world; ++peer) {
    if (peer == channel_.rank || channel_.slab[peer] == nullptr) continue;
    if (control.abort[channel_.rank] != 0) continue;  // it has failed, and its peers know why
    cudaMemcpy(&control_of(channel_.slab[peer])->abort[channel_.rank], &farewell, sizeof farewell, cudaMemcpyDefault);
  }
  const bool freed = quiet && slabs_->close(patience);
  {
    const std::lock_guard lock(record_turn_);
    last_record_ = *channel_.record;
    channel_.record = &last_record_;
    if (!quiet) abandon();
    host_.reset();
  }
  state_.reset();
  results_.reset();
  if (last_call_ != nullptr) cudaEventDestroy(last_call_);
  closed_ = true;
  cudaGetLastError();
  return freed;
}

int GpuChannel::multiprocessors() const {
  int count = 0;
  require(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_), "counting multiprocessors");
  return count;
}

int GpuChannel::resident_blocks(unsigned threads) const {
  const DeviceScope scope(device_);
  int blocks = 0;
  require(blocks_per_multiprocessor(channel_.world, threads, channel_.transport, &blocks),
          "asking for the kernels' occupancy");
  return multiprocessors() * blocks;
}

int GpuChannel::resident_teams(Algorithm algorithm, unsigned threads, unsigned cluster) const {
  if (cluster > 1 && !dependent_launch_) return 0;  // clusters came with the same GPUs
  const DeviceScope scope(device_);
  int teams = 0;
  require(cuda::resident_teams(algorithm, channel_.world, threads, cluster, multiprocessors(), &teams),
          "asking for the fused kernels' occupancy");
  return teams;
}

}  // namespace pcie_allreduce::cuda
