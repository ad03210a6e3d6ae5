// What algorithms with owners share: a lane has the same place in every shard.
#pragma once

#include "protocol/take.h"

namespace pcie_allreduce {

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
