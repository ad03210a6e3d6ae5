// What algorithms with owners share whose slabs are read, staged and pull: a lane has the same place in every shard.
#pragma once

#include "protocol/take.h"

namespace pcie_allreduce {

// Shards behind the end of the payload are short, or empty.
PAR_INLINE constexpr Word length_of_shard(Word owner, Word shard, Word units) {
  const Word first = owner * shard;
  return first >= units ? 0 : (units - first < shard ? units - first : shard);
}

// Unit i of the shard of each owner. All are loaded before any is used, so that they cost one latency and not one a
// shard; what lies behind the end stays as it is.
template <int kHops, class Machine, class Unit = typename Machine::Unit>
PAR_INLINE void read_shards(Machine& machine, const Request& request, const Word (&owner)[kHops], Word shard, Word i,
                            Unit (&into)[kHops]) {
  const Word units = request.units<Unit>();
  if (i >= shard) return;
  PAR_UNROLL
  for (Word hop = 0; hop < kHops; ++hop) {
    const Word at = owner[hop] * shard + i;
    if (at < units) into[hop] = machine.read(request, at);
  }
}

// Every unit of the lane's place in the shards of the owners, encoded, to where `put(hop, i, unit)` stores it. `ahead`:
// the first ones, which are asked for beside the state of the call and not behind it.
template <int kHops, class Machine, class Mine, class Put, class Unit = typename Machine::Unit>
PAR_INLINE void send_shards(Machine& machine, const Request& request, const Word (&owner)[kHops], Word shard,
                            const Mine& mine, Unit (&ahead)[kHops], const Put& put) {
  const Word units = request.units<Unit>();
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    if (i != mine.first) read_shards(machine, request, owner, shard, i, ahead);
    PAR_UNROLL
    for (Word hop = 0; hop < kHops; ++hop) {
      if (owner[hop] * shard + i < units) put(hop, i, encoded(ahead[hop]));
    }
  }
}

// The lane's part of the own shard, summed, to where `put(i, sum)` stores it for the others. False: the call has
// failed, and nothing more is sent, since peers must not take NaN for a sum.
template <class Element, int kWorld, class Machine, class Mine, class Slots, class Put>
PAR_INLINE bool sum_own_shard(Machine& machine, const Waiting& about, const Request& request, const Mine& mine,
                              Word shard, const Slots& slots, const Put& put) {
  using Unit = typename Machine::Unit;
  const Word rank = about.channel.rank;
  for (Word i = mine.first; i < mine.end && rank * shard + i < request.units<Unit>(); i += mine.step) {
    Unit got[kWorld];
    const Unit own = encoded(machine.read(request, rank * shard + i));
    if (!take_all(machine, about, Stage::kScatter, slots(i), own, got)) return false;
    const Unit sum = encoded(sum_in_rank_order<Element>(machine, rank * shard + i, got));
    put(i, sum);
    machine.write(request, rank * shard + i, sum);
  }
  return true;
}

// The sums of the other owners. `slots(i)`: where they stand for unit i of a shard; a source is an owner.
template <int kOwners, class Machine, class Step, class Slots>
PAR_INLINE bool take_sums(Machine& machine, const Waiting& about, const Request& request, const Part<Step>& mine,
                          Word shard, Word own, const Slots& slots) {
  using Unit = typename Machine::Unit;
  const Word units = request.units<Unit>();
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    Unit got[kOwners] = {};
    Word awaited = 0;
    PAR_UNROLL
    for (Word source = 0; source < kOwners; ++source) {
      if (source != own && source * shard + i < units) awaited |= 1u << source;
    }
    if (!take(machine, about, Stage::kGather, awaited, slots(i), got)) return false;
    PAR_UNROLL
    for (Word source = 0; source < kOwners; ++source) {
      if (awaited >> source & 1u) machine.write(request, source * shard + i, got[source]);
    }
  }
  return true;
}

// Every unit of a failed block, in this call and in all later ones.
template <class Element, class Machine, class Step>
PAR_INLINE void write_nan(Machine& machine, const Request& request, const Part<Step>& mine, Word shard) {
  const Word units = request.units<typename Machine::Unit>();
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    PAR_ROLLED
    for (Word at = i; at < units; at += shard) machine.write(request, at, Element::nan());
  }
}

}  // namespace pcie_allreduce
