// The GPU's machine: a lane is a thread that takes its pack, or a few, and a launch is a call. Everything that changes
// from call to call is in device memory, because a CUDA graph freezes every argument. The last warp of a block moves no
// data: what is done once a block or once a rank is done there, beside the packs and not behind them.
#pragma once

#include "cuda/element.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "protocol/dispatch.h"
#include "protocol/report.h"

namespace pcie_allreduce::cuda {

struct Access {
  __device__ __forceinline__ static Word load(const Word* word) { return ptx::ld_relaxed_sys(word); }
  __device__ __forceinline__ static void store(Word* word, Word value) { ptx::st_relaxed_sys(word, value); }
  __device__ __forceinline__ static bool elect(Word* word) { return atomicExch(word, 1u) == 0; }
  __device__ __forceinline__ static void fence() { ptx::fence_sys(); }
  __device__ __forceinline__ static void settle() {
    const std::uint64_t began = ptx::globaltimer_ns();
    while (ptx::globaltimer_ns() - began < kSettleNs) ptx::nanosleep(1'000'000);
  }
};

template <class Element, Share kShare>
class Machine {
  static constexpr bool kRagged = kShare == Share::kElements;

 public:
  using Unit = Pack;
  static constexpr Word kLooksAtOnce = 256;  // some 100 us of one's own memory

  __device__ __forceinline__ Machine(const Channel& channel, const Request& request)
      : channel_(channel), request_(request) {}

  // A constant: what waits is to be short code.
  __device__ __forceinline__ static constexpr bool staged() { return false; }

  __device__ __forceinline__ Call begin_call() {
    ptx::griddepcontrol_wait();  // first, in every thread, on every path
    const Control* control = channel_.state;
    const Pack* line = reinterpret_cast<const Pack*>(&control->block[blockIdx.x]);
    const Pack low = ptx::ld_relaxed_gpu_v4(line);
    const Pack high = ptx::ld_relaxed_gpu_v4(line + 1);
    const Word mark = ptx::ld_relaxed_sys(&control->abort[channel_.rank]);
    state_ = {low.word[0], low.word[1], {low.word[2], low.word[3], high.word[0]}, high.word[1], {}};
    // used[] begins at word 2, so the phase before 0, 1, 2 stands in words 4, 2, 3.
    const Word stale = low.word[1] == 0 ? high.word[0] : (low.word[1] == 1 ? low.word[2] : low.word[3]);
    return {low.word[0], low.word[1], stale, mark != 0};
  }

  // Within a call; true when a thread of the block has come to it having failed.
  __device__ __forceinline__ bool barrier(bool failed) const { return __syncthreads_or(failed) != 0; }
  __device__ __forceinline__ bool any_failed(bool failed) {
    publish();
    return meet(failed);
  }

  // Behind the barrier of any_failed: no thread of the block will read its state again. The lines of blocks that this
  // launch does not have are written too, since the next may have them; all lines are equal after every call.
  __device__ __forceinline__ void end_call(const Call& call, Word used) {
    if (threadIdx.x < data_threads()) return;
    const Word settled = request_.captured || state_.settled == kWarmupCalls ? kWarmupCalls : state_.settled + 1;
    const Pack low{{call.number + 1, phase_after(call.phase), call.phase == 0 ? used : state_.used[0],
                    call.phase == 1 ? used : state_.used[1]}};
    const Word lane = threadIdx.x - data_threads();
    for (Word b = blockIdx.x + lane * gridDim.x; b < kMaxBlocks; b += kStewards * gridDim.x) {
      Word* line = &channel_.state->block[b].call;
      ptx::st_relaxed_gpu_v4(reinterpret_cast<Pack*>(line), low);
      ptx::st_relaxed_gpu_v2(line + 4, call.phase == 2 ? used : state_.used[2], settled);
    }
  }

  __device__ __forceinline__ static Word block() { return blockIdx.x; }
  __device__ __forceinline__ static Word blocks() { return gridDim.x; }
  __device__ __forceinline__ auto share(Word units) const {
    const Range mine = rearms(units);
    if constexpr (kShare == Share::kOnePack) {
      return Part<Never>{mine.first, mine.end, {}};
    } else {
      return mine;
    }
  }
  // Of two-shot, where a warp has one owner, and a block as many warps of each. Owners change from warp to warp, so
  // that a lane finds its own without dividing by a number that only the host knows. Who has one place sums where it
  // would else have nothing to wait for.
  static constexpr int kPlacesAtOnce = kShare == Share::kOnePack ? 1 : 4;
  __device__ __forceinline__ auto hops(Word world) const {
    return Part<Never>{threadIdx.x < data_threads() ? ptx::whole(threadIdx.x / 32 % world) : world, world, {}};
  }
  __device__ __forceinline__ static Word place_in_block(Word world) {
    return threadIdx.x / 32 / world * 32 + threadIdx.x % 32;
  }
  __device__ __forceinline__ auto places(Word shard, Word world) const {
    const Word at_once = data_threads() / world;
    const Range mine{blockIdx.x * at_once + place_in_block(world), shard, gridDim.x * at_once};
    if constexpr (kShare == Share::kOnePack) {
      return Part<Never>{mine.first, mine.end, {}};
    } else {
      return mine;
    }
  }
  __device__ __forceinline__ auto own_places(Word shard, Word world) {
    if constexpr (kShare == Share::kOnePack) {
      auto mine = places(shard, world);
      if (hops(world).first + 1 != world) mine.first = mine.end;
      return mine;
    } else {
      return share(shard);
    }
  }
  __device__ __forceinline__ Range rearms(Word units) const {
    const Word first = threadIdx.x < data_threads() ? blockIdx.x * data_threads() + threadIdx.x : units;
    return {first, units, gridDim.x * data_threads()};
  }
  __device__ __forceinline__ Range once_a_block(Word tasks) const {
    return {threadIdx.x < data_threads() ? tasks : threadIdx.x - data_threads(), tasks, kStewards};
  }
  __device__ __forceinline__ Range once_a_rank(Word tasks) const {
    return blockIdx.x == 0 ? once_a_block(tasks) : Range{tasks, tasks, kStewards};
  }

  __device__ __forceinline__ Pack read(const Request& request, Word i) const {
    if constexpr (!kRagged) return static_cast<const Pack*>(request.in)[i];
    Pack pack{};
    const char* from = static_cast<const char*>(request.in);
    for_each_element(request, i, [&](Word offset, Word word, Word shift) {
      if constexpr (Element::kBytes == 2) {
        pack.word[word] |= Word{*reinterpret_cast<const std::uint16_t*>(from + offset)} << shift;
      } else {
        pack.word[word] = *reinterpret_cast<const Word*>(from + offset);
      }
    });
    return pack;
  }
  __device__ __forceinline__ void write(const Request& request, Word i, const Pack& pack) const {
    if constexpr (!kRagged) {
      static_cast<Pack*>(request.out)[i] = pack;
      return;
    }
    char* to = static_cast<char*>(request.out);
    for_each_element(request, i, [&](Word offset, Word word, Word shift) {
      if constexpr (Element::kBytes == 2) {
        *reinterpret_cast<std::uint16_t*>(to + offset) = static_cast<std::uint16_t>(pack.word[word] >> shift);
      } else {
        *reinterpret_cast<Word*>(to + offset) = pack.word[word];
      }
    });
  }
  // How often the code behind a wait is run before it: once, and not known to the compiler, which would see that
  // nothing comes of it.
  __device__ __forceinline__ static Word rehearsals() {
    Word once = 1;
    ptx::hide(once);
    return once;
  }
  __device__ __forceinline__ static void keep(Pack& pack) {
#pragma unroll
    for (Word& word : pack.word) ptx::hide(word);
  }
  __device__ __forceinline__ void put(Pack* slot, const Pack& pack) const { ptx::st_relaxed_sys_v4(slot, pack); }
  template <class Unit>
  __device__ __forceinline__ Unit peek(const Pack* slot) const {
    return ptx::ld_relaxed_sys_v4(slot);
  }
  __device__ __forceinline__ void arm(Pack* slot) const { ptx::st_relaxed_sys_v4(slot, empty_pack()); }
  __device__ __forceinline__ void fence() const { ptx::fence_sys(); }
  __device__ __forceinline__ void raise(Word* flag, Word count) const { ptx::st_relaxed_sys(flag, count); }
  __device__ __forceinline__ bool raised(const Word* flag, Word count) const {
    return reached(ptx::ld_acquire_sys(flag), count);
  }
  __device__ __forceinline__ void tell(Word* verdict, Word value) const { ptx::st_relaxed_sys(verdict, value); }

  __device__ __forceinline__ std::uint64_t clock_ns() const { return ptx::globaltimer_ns(); }
  __device__ __forceinline__ PeerWait waited(Word peer) const {
    if (blockIdx.x != 0) return {};
    return bits_as<PeerWait>(ptx::ld_relaxed_gpu_v4(waits() + peer));
  }
  __device__ __forceinline__ void set_waited(Word peer, const PeerWait& waited) const {
    if (blockIdx.x == 0) ptx::st_relaxed_gpu_v4(waits() + peer, bits_as<Pack>(waited));
  }

  __device__ __forceinline__ WaitVerdict keep_waiting(Wait& wait, const Call& call) {
#if defined(PCIE_ALLREDUCE_NO_DEADLINE)
    return WaitVerdict::kGoOn;
#else
    const std::uint64_t now = ptx::globaltimer_ns();
    if (wait.began == 0) wait.began = now;
    waited_ns_ = now - wait.began;
    bool aborted = false;
    PAR_ROLLED
    for (Word peer = 0; peer < channel_.world; ++peer) {
      aborted |= aborts(ptx::ld_relaxed_sys(abort_word_of(channel_, peer)), call.number);
    }
    if (aborted) return WaitVerdict::kAborted;
    const std::uint64_t deadline = state_.settled < kWarmupCalls ? channel_.warmup_timeout_ns : channel_.timeout_ns;
    return waited_ns_ > deadline + wait.grace ? WaitVerdict::kOutOfTime : WaitVerdict::kLook;
#endif
  }
  __device__ __forceinline__ void fault(const Fault& fault, const Call& call) {
    fault_ = kFaulted | static_cast<Word>(fault.reason) << 16 | static_cast<Word>(fault.stage) << 8 | fault.missing;
  }

 protected:
  __device__ __forceinline__ static Word data_threads() { return blockDim.x - kStewards; }
  __device__ __forceinline__ void publish() {
    if ((fault_ & kFaulted) == 0) return;
    const Fault fault{static_cast<Reason>(fault_ >> 16 & 0xFFu), static_cast<Stage>(fault_ >> 8 & 0xFFu),
                      fault_ & 0xFFu};
    publish_fault<Access>(channel_, request_, Call{state_.call, state_.phase, 0, false}, fault, waited_ns_);
  }
  __device__ __forceinline__ static bool meet(bool failed) {
    const bool any = __syncthreads_or(failed) != 0;
    ptx::griddepcontrol_launch_dependents();  // only now: a dependent grid holds slots while it waits
    return any;
  }

  const Channel& channel_;
  const Request& request_;
  BlockState state_;

 private:
  static constexpr Word kFaulted = 1u << 31;

  __device__ __forceinline__ Pack* waits() const { return reinterpret_cast<Pack*>(channel_.state->waited); }
  template <class Visit>
  __device__ __forceinline__ void for_each_element(const Request& request, Word i, Visit&& visit) const {
#pragma unroll
    for (Word e = 0; e < sizeof(Pack) / Element::kBytes; ++e) {
      const Word offset = i * Word{sizeof(Pack)} + e * Element::kBytes;
      if (offset < request.bytes) visit(offset, e * Element::kBytes / 4, e * Element::kBytes % 4 * 8);
    }
  }

  std::uint64_t waited_ns_ = 0;
  Word fault_ = 0;  // packed: it is held in a register for the whole of a call
};

}  // namespace pcie_allreduce::cuda
