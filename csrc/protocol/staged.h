// Staged push, where GPUs cannot write to each other: every rank writes to its own slab in host memory, once for all
// readers, but for the sums of two-shot where ranks share a GPU: those read copies of their own. Four phases, re-armed
// by their writer: call k re-arms what call k - 2 used, and completes that by a fence
// before it ends, because readers poll a slot for call k + 2 as soon as they have call k + 1.
#pragma once

#include "protocol/shards.h"

namespace pcie_allreduce {

// The same place in every source's slab.
struct StagedSlots {
  const Channel& channel;
  Word phase;
  Word offset;
  Word reader;
  PAR_INLINE const Pack* of(Word source) const {
    return area_of(channel.slab[source], phase, channel.area_packs) + offset;
  }
};

template <class Machine>
PAR_INLINE void announce(Machine& machine, const Waiting& about, Pack* own) {
  const Range readers = machine.once_a_rank(about.channel.world - 1);
  PAR_ROLLED
  for (Word index = readers.first; index < readers.end; index += readers.step) {
    machine.put(own + source_of(index, about.channel.rank) * kLinePacks, about.signature);
  }
}

// On behalf of a block's lanes, where every look crosses a link (StagedMachine). It is only about when they look, so no
// other machine need know of it. `begun`: all ranks have. `sent(source)`: how many units a source sends to this rank.
template <class Machine, class Sent, class Places>
PAR_INLINE void look_ahead(Machine& machine, Stage stage, bool begun, const Sent& sent, const Places& slots) {
  if constexpr (requires { machine.look_ahead(stage, begun, sent, slots); }) {
    machine.look_ahead(stage, begun, sent, slots);
  }
}

template <class Machine>
PAR_INLINE void rearm_staged(Machine& machine, const Channel& channel, const Call& call) {
  constexpr Word kUnitPacks = sizeof(typename Machine::Unit) / sizeof(Pack);
  Pack* area = area_of(channel.slab[channel.rank], two_phases_before(call.phase), channel.area_packs);
  const Range mine = machine.rearms(call.stale / kUnitPacks);  // whole lines, so whole units
  for (Word i = mine.first; i < mine.end; i += mine.step) machine.arm(area + i * kUnitPacks);
  if (mine.first < mine.end) machine.fence();
}

// Reads of one host word by several blocks wait for each other, about a microsecond each. So one block a rank looks at
// the signatures, and tells the others near to them: as everywhere, no block hands out sums of another call's bytes.
// Abort words are such words, too. Looks near at hand are so quick that a block looks at those only after many more of
// them than elsewhere, some 10 ms: when all blocks did so every 50 us, a rank that came late found its link taken.
template <class Machine>
PAR_INLINE bool staged_signatures_agree(Machine& machine, const Waiting& about) {
  const Word others = about.channel.world - 1;
  const Word now = about.call.number + 1;  // never 0, which is there before the first call
  const Range looked = machine.once_a_rank(others);
  if (!signatures_agree(machine, about, looked)) return false;
  PAR_ROLLED
  for (Word index = looked.first; index < looked.end; index += looked.step) {
    machine.set_agreed(source_of(index, about.channel.rank), now);
  }
  Wait wait(kind_algorithm(about.request.kind), Stage::kSignature);
  const Range told = machine.once_a_block(others);
  PAR_ROLLED
  for (Word index = told.first; index < told.end; index += told.step) {
    const Word peer = source_of(index, about.channel.rank);
    const Pack* slot = announcement(machine.staged(), about.channel, about.call.phase, index);
    const auto is_told = [&] { return machine.agreed(peer) == now; };
    while (!comes_soon<Machine>([&] { return comes_soon<Machine>(is_told); })) {
      // A rank that goes on after a long stop must not blame a peer for what its own block has not told yet.
      const bool due = wait.due != WaitVerdict::kLook;
      if (due && same(machine.template peek<Pack>(slot), about.signature)) break;
      if (gave_up(machine, about, wait, Stage::kSignature, 1u << peer)) return false;
    }
  }
  return true;
}

template <class Element, int kWorld, class Machine>
PAR_INLINE void staged_one_shot(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const StagedLayout layout(1, request.units());
  const auto mine = machine.share(request.units<Unit>());
  Unit ahead = {};
  if (mine.first < mine.end) ahead = machine.read(request, mine.first);
  bool failed = call.failed;

  if (!failed) {
    Pack* own = area_of(channel.slab[channel.rank], call.phase, channel.area_packs);
    announce(machine, about, own);
    send_units(machine, request, mine, ahead,
               [&](Word i, const Unit& unit) { machine.put(own + layout.payload(0) + i * kUnitPacks, unit); });
    rearm_staged(machine, channel, call);
    const auto slots = [&](Word i) {
      return StagedSlots{channel, call.phase, layout.payload(0) + i * kUnitPacks, channel.rank};
    };
    const auto sent = [&](Word) { return request.units<Unit>(); };
    look_ahead(machine, Stage::kGather, false, sent, slots);
    failed = !staged_signatures_agree(machine, about);
    if (!failed) look_ahead(machine, Stage::kGather, true, sent, slots);  // for those of a rank that was late
    failed = failed || !sum_units<Element, kWorld>(machine, about, request, mine, slots);
  }

  if (machine.any_failed(failed)) {
    for (Word i = mine.first; i < mine.end; i += mine.step) machine.write(request, i, Element::nan());
    return;
  }
  machine.end_call(call, layout.used());
}

template <class Element, int kWorld, class Machine>
PAR_INLINE void staged_two_shot(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const Word rank = channel.rank;
  const StagedLayout layout(kWorld, request.units(), channel.sum_copies);
  const Word shard = layout.shard / kUnitPacks;
  const auto mine = machine.share(shard);
  Word owner[kWorld - 1];
  PAR_UNROLL
  for (Word hop = 0; hop < kWorld - 1; ++hop) owner[hop] = after(rank, hop + 1, kWorld);
  Unit ahead[kWorld - 1] = {};
  read_shards(machine, request, owner, shard, mine.first, ahead);
  bool failed = call.failed;

  if (!failed) {
    Pack* own = area_of(channel.slab[rank], call.phase, channel.area_packs);
    announce(machine, about, own);
    send_shards(machine, request, owner, shard, mine, ahead, [&](Word hop, Word i, const Unit& unit) {
      machine.put(own + layout.payload(owner[hop]) + i * kUnitPacks, unit);
    });
    rearm_staged(machine, channel, call);
    const auto shards = [&](Word i) {
      return StagedSlots{channel, call.phase, layout.payload(rank) + i * kUnitPacks, rank};
    };
    const auto sums = [&](Word i) {
      return StagedSlots{channel, call.phase, layout.sums(channel.sum_copy) + i * kUnitPacks, rank};
    };
    const auto put_sum = [&](Word i, const Unit& sum) {
      PAR_ROLLED
      for (Word copy = 0; copy < layout.copies; ++copy) machine.put(own + layout.sums(copy) + i * kUnitPacks, sum);
    };
    const auto length = [&](Word owner) { return length_of_shard(owner, shard, request.units<Unit>()); };
    const auto own_length = [&](Word) { return length(rank); };
    look_ahead(machine, Stage::kScatter, false, own_length, shards);
    failed = !staged_signatures_agree(machine, about);
    if (!failed) {
      look_ahead(machine, Stage::kScatter, true, own_length, shards);  // for those of a rank that was late
      look_ahead(machine, Stage::kGather, true, length, sums);
    }
    failed = failed || !sum_own_shard<Element, kWorld>(machine, about, request, mine, shard, shards, put_sum) ||
             !take_sums<kWorld>(machine, about, request, mine, shard, rank, sums);
  }

  if (machine.any_failed(failed)) {
    write_nan<Element>(machine, request, mine, shard);
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
