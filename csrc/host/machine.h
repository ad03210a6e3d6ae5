// The CPU's machine: one lane a rank, which streams through all packs. On a shared-memory host an aligned 16-byte
// access through a vector register is made of whole words, which is all that the protocol relies on; what the GPU gets
// from a launch boundary comes from a fence at the start of every call.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <type_traits>

#include "host/cpu_lanes.h"
#include "host/element.h"
#include "protocol/dispatch.h"
#include "protocol/report.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace pcie_allreduce::host::PAR_ISA {

inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
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
  static void settle() { std::this_thread::sleep_for(std::chrono::nanoseconds(kSettleNs)); }
};

using PackWords = Word __attribute__((vector_size(16), may_alias));

class Machine {
 public:
  using Unit = PAR_ISA::Unit;
  static constexpr Word kLooksAtOnce = 1;  // whoever shares its core is to be thought of each time

  Machine(const Channel& channel, const Request& request, bool crowded, Watch& watch)
      : channel_(channel),
        request_(request),
        watch_(watch),
        state_(channel.state->block[0]),
        spins_(crowded ? 64 : 4096) {}

  Call begin_call() {
    std::atomic_thread_fence(
        std::memory_order_acq_rel);  // what the last call re-armed is visible before this one sends
    const Word mark = Access::load(abort_word_of(channel_, channel_.rank));
    deadline_ns_ = state_.settled < kWarmupCalls ? channel_.warmup_timeout_ns : channel_.timeout_ns;
    const Word stale = channel_.staged() ? two_phases_before(state_.phase) : phase_before(state_.phase);
    return {state_.call, state_.phase, used(stale), mark != 0};
  }
  bool barrier(bool failed) { return failed; }
  bool any_failed(bool failed) { return failed; }
  void end_call(const Call& call, Word used) {
    this->used(call.phase) = used;
    state_.call = call.number + 1;
    state_.phase = channel_.staged() ? staged_phase_after(call.phase) : phase_after(call.phase);
    if (state_.settled < kWarmupCalls) ++state_.settled;
  }

  bool staged() const { return channel_.staged(); }
  Word block() const { return 0; }
  Word blocks() const { return 1; }
  PAR_INLINE Range share(Word units) const { return {0, units, 1}; }
  PAR_INLINE Range hops(Word world) const { return {0, world, 1}; }
  static constexpr int kPlacesAtOnce = 1;
  PAR_INLINE Range places(Word shard, Word) const { return {0, shard, 1}; }
  PAR_INLINE Range own_places(Word shard, Word) const { return {0, shard, 1}; }
  PAR_INLINE Range rearms(Word units) const { return {0, units, 1}; }
  PAR_INLINE Range once_a_block(Word tasks) const { return {0, tasks, 1}; }
  PAR_INLINE Range once_a_rank(Word tasks) const { return {0, tasks, 1}; }

  PAR_INLINE Unit read(const Request& request, Word i) const {
    const Word offset = i * Word{sizeof(Unit)};
    const char* from = static_cast<const char*>(request.in) + offset;
    Unit unit;
    if (request.bytes - offset >= sizeof(Unit)) {
      const UnalignedWords* parts = reinterpret_cast<const UnalignedWords*>(from);
      for (int p = 0; p < kParts; ++p) unit.part[p] = parts[p];
    } else {
      unit = {};
      std::memcpy(&unit, from, request.bytes - offset);
    }
    return unit;
  }
  PAR_INLINE void write(const Request& request, Word i, const Unit& unit) const {
    const Word offset = i * Word{sizeof(Unit)};
    char* to = static_cast<char*>(request.out) + offset;
    if (request.bytes - offset >= sizeof(Unit)) {
      UnalignedWords* parts = reinterpret_cast<UnalignedWords*>(to);
      for (int p = 0; p < kParts; ++p) parts[p] = unit.part[p];
    } else {
      std::memcpy(to, &unit, request.bytes - offset);
    }
  }
  // Volatile: once each, in this order, and never from a register that was loaded before.
  PAR_INLINE void put(Pack* slot, const Unit& unit) const {
    volatile Words* parts = reinterpret_cast<volatile Words*>(slot);
    for (int p = 0; p < kParts; ++p) parts[p] = unit.part[p];
  }
  PAR_INLINE void put(Pack* slot, const Pack& pack) const {
    *reinterpret_cast<volatile PackWords*>(slot) = *reinterpret_cast<const PackWords*>(&pack);
  }
  template <class Moved>
  PAR_INLINE Moved peek(const Pack* slot) const {
    Moved moved;
    if constexpr (std::is_same_v<Moved, Pack>) {
      *reinterpret_cast<PackWords*>(&moved) = *reinterpret_cast<const volatile PackWords*>(slot);
    } else {
      const volatile Words* parts = reinterpret_cast<const volatile Words*>(slot);
      for (int p = 0; p < kParts; ++p) moved.part[p] = parts[p];
    }
    return moved;
  }
  PAR_INLINE void arm(Pack* slot) const { put(slot, filled(every(kEmpty))); }
  void fence() const { Access::fence(); }
  void raise(Word* flag, Word value) const { Access::store(flag, value); }
  bool raised(const Word* flag, Word value) const {
    return reached(std::atomic_ref<const Word>(*flag).load(std::memory_order_acquire), value);
  }
  Word agreed(Word peer) const { return Access::load(&channel_.state->agreed[peer]); }
  void set_agreed(Word peer, Word call) const { Access::store(&channel_.state->agreed[peer], call); }
  void tell(Word* verdict, Word value) const { *verdict = value; }

  std::uint64_t clock_ns() const { return now_ns(); }
  PeerWait waited(Word peer) const { return channel_.state->waited[peer]; }
  void set_waited(Word peer, const PeerWait& waited) const { channel_.state->waited[peer] = waited; }

  PAR_COLD WaitVerdict keep_waiting(Wait& wait, const Call& call) {
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
    if (waited_ns_ > deadline_ns_ + wait.grace) return WaitVerdict::kOutOfTime;
    if (next_watch_ == 0) next_watch_ = now + kWatchEveryNs;
    if (known_.reason == Reason::kNone && now > next_watch_) {
      next_watch_ = now + kWatchEveryNs;
      known_ = watch_.look();
    }
    if (known_.reason != Reason::kNone) return WaitVerdict::kOutOfTime;
    sched_yield();
    return WaitVerdict::kLook;
  }
  PAR_COLD void fault(const Fault& fault, const Call& call) {
    Fault told = fault;
    if (known_.reason != Reason::kNone) {
      told.reason = known_.reason;
      told.missing = known_.missing;
    }
    publish_fault<Access>(channel_, request_, call, told, waited_ns_);
  }

 private:
  static constexpr std::uint64_t kWatchEveryNs = 20'000'000;

  Word& used(Word phase) { return phase < kPhases ? state_.used[phase] : state_.used_fourth; }

  const Channel& channel_;
  const Request& request_;
  Watch& watch_;
  BlockState& state_;
  Word spins_;
  std::uint64_t deadline_ns_ = 0;
  std::uint64_t waited_ns_ = 0;
  std::uint64_t next_watch_ = 0;  // by the clock, whichever of the call's waits it is; 0: none has lasted yet
  Fault known_{};
};

}  // namespace pcie_allreduce::host::PAR_ISA
