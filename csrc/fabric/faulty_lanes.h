// Lanes that do one thing wrong.
#pragma once

#include "fabric/algorithms.h"
#include "fabric/simulation.h"

namespace pcie_allreduce::fabric {

// Invariant 3.

struct TwoPhases : Lane {
  using Lane::Lane;
  Call begin_call() override {
    Call call = Lane::begin_call();
    call.phase %= 2;
    call.stale = state_.used[1 - call.phase];
    return call;
  }
  BlockState next_state(const Call& call, Word used) const override {
    BlockState next = Lane::next_state(call, used);
    next.phase = 1 - call.phase;
    return next;
  }
  // rearm() goes to the phase before the first one, which is here the second.
  void arm(Pack* slot) override {
    const Pack* third = area_of(channel_.slab[channel_.rank], 2, channel_.area_packs);
    Lane::arm(slot >= third ? slot - channel_.area_packs : slot);
  }
};

struct NoRearm : Lane {
  using Lane::Lane;
  void arm(Pack*) override {}
};

// Of a staged channel: call k re-arms what call k - 1 used.
struct StagedRearmsPrevious : Lane {
  using Lane::Lane;
  Call begin_call() override {
    Call call = Lane::begin_call();
    const Word before = (call.phase + kStagedPhases - 1) % kStagedPhases;
    call.stale = before < kPhases ? state_.used[before] : state_.used_fourth;
    return call;
  }
  void arm(Pack* slot) override {
    Pack* area = area_of(channel_.slab[channel_.rank], 0, channel_.area_packs);
    const Word at = static_cast<Word>(slot - area);  // in the phase before the one that is meant
    Lane::arm(area + (at + channel_.area_packs) % (kStagedPhases * channel_.area_packs));
  }
};

// ... with three phases.
struct StagedThreePhases : Lane {
  using Lane::Lane;
  Call begin_call() override {
    Call call = Lane::begin_call();
    call.phase %= 3;
    call.stale = state_.used[phase_before(call.phase)];
    return call;
  }
  BlockState next_state(const Call& call, Word used) const override {
    BlockState next = Lane::next_state(call, used);
    next.phase = phase_after(call.phase);
    return next;
  }
  void arm(Pack* slot) override {
    const Word meant = two_phases_before(state_.phase % 3);
    Lane::arm(slot - meant * channel_.area_packs + phase_before(state_.phase % 3) * channel_.area_packs);
  }
};

// ... and of an owner's sums the first copy alone.
struct StagedRearmsOneCopy : Lane {
  using Lane::Lane;
  BlockState next_state(const Call& call, Word) const override {
    const Request& request = rank_.requests[grid_.call];
    return Lane::next_state(call, used_packs(request, channel_.world, channel_.transport, 1));
  }
};

// Invariant 4.

struct RearmsThisRange : Lane {
  using Lane::Lane;
  Call begin_call() override {
    Call call = Lane::begin_call();
    call.stale = used_packs(rank_.requests[grid_.call], channel_.world, channel_.transport, channel_.sum_copies);
    return call;
  }
};

// Every algorithm its own third of a phase, and the one epoch of all.
struct OwnAreas : Lane {
  using Lane::Lane;
  Pack* own(const Pack* slot) const {
    const Word area = static_cast<Word>(kind_algorithm(rank_.requests[grid_.call].kind)) - 1;
    return const_cast<Pack*>(slot) + area * (channel_.area_packs / 3);
  }
  void put(Pack* slot, const Pack& value) override { Lane::put(own(slot), value); }
  Pack peek(const Pack* slot) override { return Lane::peek(own(slot)); }
  void arm(Pack* slot) override { Lane::arm(own(slot)); }
};

// Invariant 2. One-shot alone, where what follows the last pack of a slot is padding.
struct SendsPadding : Lane {
  using Lane::Lane;
  void put(Pack* slot, const Pack& value) override {
    Lane::put(slot, value);
    const Word packs = rank_.requests[grid_.call].units();
    const OneShotLayout layout(channel_.world, packs);
    const Word reader = simulation_.memory().home(simulation_.memory().index(slot));
    const Word at =
        static_cast<Word>(slot - area_of(channel_.slab[reader], 0, channel_.area_packs)) % channel_.area_packs;
    const bool last = at >= kLinePacks && (at - kLinePacks) % layout.stride == packs - 1;
    if (last && layout.stride > packs) store_pack(slot + 1, Pack{});  // not counted: found by what it does
  }
};

// The epoch: terms and invariant 7.

struct EpochModuloThree : Lane {
  using Lane::Lane;
  Call begin_call() override {
    Call call = Lane::begin_call();
    call.phase = call.number % kPhases;
    call.stale = state_.used[phase_before(call.phase)];
    return call;
  }
};

struct EarlyEpoch : Lane {
  using Lane::Lane;
  bool any_failed(bool failed) override { return failed; }  // no barrier before the epoch is advanced
};

struct FrozenEpoch : Lane {
  using Lane::Lane;
  Call begin_call() override {
    Call call = Lane::begin_call();
    call.number = simulation_.scenario().first_call;
    call.phase = simulation_.scenario().first_phase;
    call.stale = state_.used[phase_before(call.phase)];
    return call;
  }
};

struct OwnLineOnly : Lane {
  using Lane::Lane;
  void write_state(Word first, Word, const BlockState& state) override {
    if (first == block()) Lane::write_state(first, kStateLines, state);
  }
};

// Invariant 6.

struct EpochBeforeWait : Lane {
  using Lane::Lane;
  Call begin_call() override {
    const Call call = read_state();
    wait_for_predecessor();
    return call;
  }
};

// Knows its epoch, sends, and waits for the predecessor only before it looks or stores elsewhere.
struct SendsBeforeWait : Lane {
  using Lane::Lane;
  bool waited = false;
  Call begin_call() override {
    const Word number = simulation_.scenario().first_call + grid_.call;
    for (;;) {
      const Call call = read_state();
      if (call.number == number || simulation_.predecessor_complete(rank_, grid_)) return call;
      simulation_.scheduler().pause(*this);
    }
  }
  void wait_once() {
    if (!waited) wait_for_predecessor();
    waited = true;
  }
  Pack peek(const Pack* slot) override {
    wait_once();
    return Lane::peek(slot);
  }
  void arm(Pack* slot) override {
    wait_once();
    Lane::arm(slot);
  }
  bool any_failed(bool failed) override {
    wait_once();
    return Lane::any_failed(failed);
  }
};

struct IdleBlockLeavesEarly : Lane {
  using Lane::Lane;
  Call begin_call() override {
    const bool idle = block() * data_threads_ >= rank_.requests[grid_.call].units();
    return idle ? read_state() : Lane::begin_call();
  }
};

struct FailedBlockLeavesEarly : Lane {
  using Lane::Lane;
  Call begin_call() override {
    const Call early = read_state();
    return early.failed ? early : Lane::begin_call();
  }
};

// Invariant 5: nobody signs, nobody checks. Counted as if sent, so that the links do not tell.
struct NoSignature : Lane {
  using Lane::Lane;
  Call begin_call() override {
    const Call call = Lane::begin_call();
    for (Word peer = 0; peer < channel_.world && block() == 0 && thread() == 0 && !call.failed; ++peer) {
      if (peer != channel_.rank) simulation_.checker().sent(channel_.rank, grid_.call, peer);
    }
    return call;
  }
  Range once_a_block(Word tasks) const override { return {tasks, tasks, 1}; }
  Range once_a_rank(Word tasks) const override { return {tasks, tasks, 1}; }
};

// Invariant 13.

struct PullOneCopy : Lane {
  using Lane::Lane;
  const Pack* only(const Pack* slot) const {
    const Word home = simulation_.memory().home(simulation_.memory().index(slot));
    return slot < staging_of(channel_.slab[home], 1, channel_.copy_packs) ? slot : slot - channel_.copy_packs;
  }
  void put(Pack* slot, const Pack& value) override { Lane::put(const_cast<Pack*>(only(slot)), value); }
  Pack peek(const Pack* slot) override { return Lane::peek(only(slot)); }
};

struct PullEqual : Lane {
  using Lane::Lane;
  bool raised(const Word* flag, Word count) override { return load(flag) == count; }
};

// The flag speaks for lanes of the block that have not stored yet.
struct PullNoBarrier : Lane {
  using Lane::Lane;
  bool met = false;
  bool meet(bool failed) override {
    if (met) return Lane::meet(failed);
    met = true;
    return failed;
  }
};

// Failure.

struct StaleOutput : Lane {
  using Lane::Lane;
  bool failed = false;
  Call begin_call() override {
    const Call call = Lane::begin_call();
    failed = call.failed;
    return call;
  }
  void write(const Request& request, Word pack, const Pack& value) override {
    if (!failed) Lane::write(request, pack, value);
  }
};

struct NamesVictims : Lane {
  using Lane::Lane;
  Word load_abort(const Word*) override { return 0; }
};

struct NoFence : Lane {
  using Lane::Lane;
  void fence() override {}
};

// The first rewrite of EMPTY is left to the wire, so to speak: it never happens (see RawPack), or happens on input
// alone.
struct RewritesInputOnly : Lane {
  using Lane::Lane;
  Pack read(const Request& request, Word pack) override { return encoded(Lane::read(request, pack)); }
};

}  // namespace pcie_allreduce::fabric
