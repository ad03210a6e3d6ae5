// Pull, for fabrics where posted writes collapse: every rank copies its data to its own slab and raises a flag at each
// peer, and peers read. Only signatures and flags are pushed.
//
// A staging copy is written anew two calls later: a rank that has completed call k + 1 has seen every peer's flag of
// it, and a peer raises that after it has completed call k, with all that it had to read.
//
// A block awaits the blocks of its own number, which hold the packs that it needs because all ranks launch the same
// shape; that is part of the signature here.
#pragma once

#include "protocol/shards.h"

namespace pcie_allreduce {

// A flag counts stages, two a call, so that one-shot and two-shot may take turns.
PAR_INLINE constexpr Word passed(Word call, Word stage) { return 2 * call + stage + 1; }

// The same place in the copy of every source. What its flag has announced is there: one look, and no test.
struct Copies {
  const Channel& channel;
  Word call;
  Word offset;
  Word reader;
  PAR_INLINE const Pack* of(Word source) const {
    return staging_of(channel.slab[source], call, channel.copy_packs) + offset;
  }
};

template <int kSources, class Machine, class Unit = typename Machine::Unit>
PAR_INLINE bool take(Machine& machine, const Waiting&, Stage, Word awaited, const Copies& copies,
                     Unit (&got)[kSources]) {
  PAR_UNROLL
  for (Word source = 0; source < kSources; ++source) {
    if (awaited >> source & 1u) got[source] = machine.template peek<Unit>(copies.of(source));
  }
  return true;
}

// Behind the barrier that every lane of the block has come to with its data stored: the fence is for all of them.
template <class Machine>
PAR_INLINE void raise_flags(Machine& machine, const Waiting& about, Word stage) {
  const Channel& channel = about.channel;
  const Word count = passed(about.call.number, stage);
  // One flag a call for blocks that this launch does not have, in turn: after 2^31 stages it would seem to be ahead.
  const Word idle = about.call.number % kMaxBlocks;
  const bool also_idle = stage == 0 && machine.block() == 0 && idle >= machine.blocks();
  const Range peers = machine.once_a_block(channel.world - 1);
  if (peers.first < peers.end) machine.fence();
  PAR_ROLLED
  for (Word index = peers.first; index < peers.end; index += peers.step) {
    char* slab = channel.slab[source_of(index, channel.rank)];
    machine.raise(flag_of(slab, machine.block(), channel.rank), count);
    if (also_idle) machine.raise(flag_of(slab, idle, channel.rank), count);
  }
}

template <class Machine>
PAR_INLINE bool flags_raised(Machine& machine, const Waiting& about, Stage name, Word stage) {
  const Channel& channel = about.channel;
  Wait wait(kind_algorithm(about.request.kind), name);
  const Range sources = machine.once_a_block(channel.world - 1);
  PAR_ROLLED
  for (Word index = sources.first; index < sources.end; index += sources.step) {
    const Word source = source_of(index, channel.rank);
    const Word* flag = flag_of(channel.slab[channel.rank], machine.block(), source);
    const Word count = passed(about.call.number, stage);
    while (!comes_soon<Machine>([&] { return machine.raised(flag, count); })) {
      if (gave_up(machine, about, wait, name, 1u << source)) return false;
    }
  }
  return true;
}

// From data stored by every lane of the block to the peers' data, which they may read then. False, for the whole block:
// the call has failed. `failed` may differ from lane to lane: another block of this call may fail at any time.
template <class Machine>
PAR_INLINE bool pass_first(Machine& machine, const Waiting& about, Stage name, bool failed) {
  if (machine.barrier(failed)) return false;
  raise_flags(machine, about, 0);
  send_signatures(machine, about);  // behind the flags, whose fence need not wait for them
  rearm(machine, about.channel, about.call);
  const bool agree = signatures_agree(machine, about, machine.once_a_block(about.channel.world - 1));
  return !machine.barrier(!agree || !flags_raised(machine, about, name, 0));
}

template <class Machine>
PAR_INLINE bool pass_second(Machine& machine, const Waiting& about) {
  machine.barrier(false);
  raise_flags(machine, about, 1);
  return !machine.barrier(!flags_raised(machine, about, Stage::kGather, 1));
}

template <class Element, int kWorld, class Machine>
PAR_INLINE void pull_one_shot(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const StagedLayout layout(1, request.units());
  const auto mine = machine.share(request.units<Unit>());
  Unit ahead = {};
  if (mine.first < mine.end) ahead = machine.read(request, mine.first);
  if (!call.failed) {
    Pack* own = staging_of(channel.slab[channel.rank], call.number, channel.copy_packs) + layout.payload(0);
    send_units(machine, request, mine, ahead,
               [&](Word i, const Unit& unit) { machine.put(own + i * kUnitPacks, unit); });
  }
  const auto copies = [&](Word i) {
    return Copies{channel, call.number, layout.payload(0) + i * kUnitPacks, channel.rank};
  };
  const bool ended = pass_first(machine, about, Stage::kGather, call.failed) &&
                     sum_units<Element, kWorld>(machine, about, request, mine, copies);

  if (machine.any_failed(!ended)) {
    for (Word i = mine.first; i < mine.end; i += mine.step) machine.write(request, i, Element::nan());
    return;
  }
  machine.end_call(call, kLinePacks);
}

template <class Element, int kWorld, class Machine>
PAR_INLINE void pull_two_shot(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const Word rank = channel.rank;
  const StagedLayout layout(kWorld, request.units());
  const Word shard = layout.shard / kUnitPacks;
  const auto mine = machine.share(shard);
  Word owner[kWorld - 1];
  PAR_UNROLL
  for (Word hop = 0; hop < kWorld - 1; ++hop) owner[hop] = after(rank, hop + 1, kWorld);
  Unit ahead[kWorld - 1] = {};
  read_shards(machine, request, owner, shard, mine.first, ahead);
  Pack* own = staging_of(channel.slab[rank], call.number, channel.copy_packs);
  if (!call.failed) {
    send_shards(machine, request, owner, shard, mine, ahead, [&](Word hop, Word i, const Unit& unit) {
      machine.put(own + layout.payload(owner[hop]) + i * kUnitPacks, unit);
    });
  }
  const auto shards = [&](Word i) { return Copies{channel, call.number, layout.payload(rank) + i * kUnitPacks, rank}; };
  const auto sums = [&](Word i) { return Copies{channel, call.number, layout.sums(0) + i * kUnitPacks, rank}; };
  const auto put_sum = [&](Word i, const Unit& sum) { machine.put(own + layout.sums(0) + i * kUnitPacks, sum); };
  const bool ended = pass_first(machine, about, Stage::kScatter, call.failed) &&
                     sum_own_shard<Element, kWorld>(machine, about, request, mine, shard, shards, put_sum) &&
                     pass_second(machine, about) && take_sums<kWorld>(machine, about, request, mine, shard, rank, sums);

  if (machine.any_failed(!ended)) {
    write_nan<Element>(machine, request, mine, shard);
    return;
  }
  machine.end_call(call, kLinePacks);
}

}  // namespace pcie_allreduce
