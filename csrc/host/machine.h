// The CPU's machine: one lane a rank, which streams through all packs. On a shared-memory host an aligned 16-byte access
// through a vector register is made of whole words, which is all that the protocol relies on; what the GPU gets from a
// launch boundary comes from a fence at the start of every call.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "host/element.h"
#include "protocol/dispatch.h"
#include "protocol/report.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace pcie_allreduce::host {

inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

inline void cpu_pause() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// Sums must not depend on what the caller set: subnormals count, rounding is to nearest.
class ExactFloats {
 public:
#if defined(__SSE2__)
  ExactFloats() : before_(_mm_getcsr()) {
    if (before_ != kDefault) _mm_setcsr(kDefault);
  }
  ~ExactFloats() {
    if (before_ != kDefault) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kDefault = 0x1F80;
  unsigned before_;
#endif
};

struct Access {
  static Word load(const Word* word) { return std::atomic_ref<const Word>(*word).load(std::memory_order_relaxed); }
  static void store(Word* word, Word value) { std::atomic_ref<Word>(*word).store(value, std::memory_order_relaxed); }
  static bool elect(Word* word) { return std::atomic_ref<Word>(*word).exchange(1) == 0; }
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
};

class Machine {
 public:
  Machine(const Channel& channel, const Request& request, bool crowded)
      : channel_(channel), request_(request), state_(control_of(channel.slab[channel.rank])->block[0]),
        spins_(crowded ? 64 : 4096) {}

  Call begin_call() {
    std::atomic_thread_fence(std::memory_order_acq_rel);  // what the last call re-armed is visible before this one sends
    const Word mark = Access::load(&control_of(channel_.slab[channel_.rank])->abort[channel_.rank]);
    deadline_ns_ = state_.settled < kWarmupCalls ? channel_.warmup_timeout_ns : channel_.timeout_ns;
    return {state_.call, state_.phase, state_.used[phase_before(state_.phase)], mark != 0};
  }
  bool any_failed(bool failed) { return failed; }
  void end_call(const Call& call, Word used) {
    state_.used[call.phase] = used;
    state_.call = call.number + 1;
    state_.phase = phase_after(call.phase);
    if (state_.settled < kWarmupCalls) ++state_.settled;
  }

  PAR_INLINE Range share(Word packs) const { return {0, packs, 1}; }
  PAR_INLINE Range block_share(Word packs) const { return {0, packs, 1}; }

  PAR_INLINE Pack read(const Request& request, Word i) const {
    Pack pack{};
    const Word offset = i * Word{sizeof(Pack)};
    const char* from = static_cast<const char*>(request.in) + offset;
    if (request.bytes - offset >= sizeof(Pack)) {
      std::memcpy(&pack, from, sizeof(Pack));
    } else {
      std::memcpy(&pack, from, request.bytes - offset);
    }
    return pack;
  }
  PAR_INLINE void write(const Request& request, Word i, const Pack& pack) const {
    const Word offset = i * Word{sizeof(Pack)};
    char* to = static_cast<char*>(request.out) + offset;
    if (request.bytes - offset >= sizeof(Pack)) {
      std::memcpy(to, &pack, sizeof(Pack));
    } else {
      std::memcpy(to, &pack, request.bytes - offset);
    }
  }
  PAR_INLINE void put(Pack* slot, const Pack& pack) const {
    *reinterpret_cast<volatile Words*>(slot) = words_of(pack);
  }
  PAR_INLINE Pack peek(const Pack* slot) const {
    const Words words = *reinterpret_cast<const volatile Words*>(slot);
    return pack_of(words);
  }
  PAR_INLINE void arm(Pack* slot) const { put(slot, empty_pack()); }
  void tell(Word* verdict, Word value) const { *verdict = value; }

  __attribute__((noinline)) WaitVerdict keep_waiting(Wait& wait, const Call& call) {
    if (++wait.polls % spins_ != 0) {
      cpu_pause();
      return WaitVerdict::kGoOn;
    }
    const std::uint64_t now = now_ns();
    if (wait.began == 0) wait.began = now;
    waited_ns_ = now - wait.began;
    const Control* control = control_of(channel_.slab[channel_.rank]);
    for (const Word& word : control->abort) {
      if (aborts(Access::load(&word), call.number)) return WaitVerdict::kAborted;
    }
    if (waited_ns_ > deadline_ns_) return WaitVerdict::kOutOfTime;
    sched_yield();
    return WaitVerdict::kLook;
  }
  void fault(const Fault& fault, const Call& call) {
    publish_fault<Access>(channel_, kind_algorithm(request_.kind), call.number, fault, waited_ns_);
  }

 private:
  const Channel& channel_;
  const Request& request_;
  BlockState& state_;
  Word spins_;
  std::uint64_t deadline_ns_ = 0;
  std::uint64_t waited_ns_ = 0;
};

}  // namespace pcie_allreduce::host
