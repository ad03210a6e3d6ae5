// Small models, right and wrong, of reduce-scatter and all-gather whose shards may be empty, which the package's are
// not. They stand on the same machine and the same waits, and send no signatures.
#pragma once

#include "fabric/algorithms.h"
#include "fabric/machine.h"
#include "protocol/take.h"

namespace pcie_allreduce::fabric {

// Alone, without the other half of a two-shot: what a rank completes no longer depends on all the others, unless every
// source sends at least one pack to every destination, also for an empty shard.
inline Word at_least(bool one, Word packs) { return one && packs == 0 ? 1 : packs; }

template <class Element, int kWorld, class MachineType>
void reduce_scatter(MachineType& machine, const Channel& channel, const Request& request, bool always_one) {
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, request, call);
  const OneShotLayout layout(kWorld, request.units());
  bool failed = false;
  for (Word owner = 0; owner < kWorld; ++owner) {
    const Range shard = pack_shard(kWorld, owner, request.units());
    const Range mine = machine.share(at_least(always_one, shard.end - shard.first));
    for (Word i = mine.first; i < mine.end && owner != channel.rank; i += mine.step) {
      machine.put(area_of(channel.slab[owner], call.phase, channel.area_packs) + layout.slot(channel.rank, owner) + i,
                  shard.first + i < shard.end ? encoded(machine.read(request, shard.first + i)) : Pack{});
    }
  }
  rearm(machine, channel, call);
  const Range shard = pack_shard(kWorld, channel.rank, request.units());
  const Range mine = machine.share(at_least(always_one, shard.end - shard.first));
  for (Word i = mine.first; i < mine.end && !failed; i += mine.step) {
    Pack got[kWorld] = {};
    const bool padding = shard.first + i >= shard.end;
    const Pack own = padding ? Pack{} : encoded(machine.read(request, shard.first + i));
    const Slots slots{about.area + kLinePacks + i, layout.stride, channel.rank};
    failed = !take_all(machine, about, Stage::kScatter, slots, own, got);
    if (!failed && !padding) machine.write(request, shard.first + i, sum_in_rank_order<Element>(machine, i, got));
  }
  if (!machine.any_failed(failed)) machine.end_call(call, layout.used());
}

template <class Element, int kWorld, class MachineType>
void all_gather(MachineType& machine, const Channel& channel, const Request& request, bool always_one) {
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, request, call);
  const OneShotLayout layout(kWorld, request.units());
  const Range own = pack_shard(kWorld, channel.rank, request.units());
  const Range mine = machine.share(at_least(always_one, own.end - own.first));
  bool failed = false;
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    const bool padding = own.first + i >= own.end;
    const Pack pack = padding ? Pack{} : encoded(machine.read(request, own.first + i));
    for (Word reader = 0; reader < kWorld; ++reader) {
      if (reader == channel.rank) continue;
      machine.put(area_of(channel.slab[reader], call.phase, channel.area_packs) + layout.slot(channel.rank, reader) + i,
                  pack);
    }
    const Pack alone[1] = {pack};  // a sum of one, so that a zero is positive here too
    if (!padding) machine.write(request, own.first + i, sum_in_rank_order<Element>(machine, i, alone));
  }
  rearm(machine, channel, call);
  for (Word source = 0; source < kWorld; ++source) {
    const Range shard = pack_shard(kWorld, source, request.units());
    const Range theirs = machine.share(at_least(always_one, shard.end - shard.first));
    for (Word i = theirs.first; i < theirs.end && !failed && source != channel.rank; i += theirs.step) {
      Pack got[kWorld] = {};
      const Slots slots{about.area + kLinePacks + i, layout.stride, channel.rank};
      failed = !take(machine, about, Stage::kGather, 1u << source, slots, got);
      const Pack alone[1] = {got[source]};
      if (!failed && shard.first + i < shard.end)
        machine.write(request, shard.first + i, sum_in_rank_order<Element>(machine, i, alone));
    }
  }
  if (!machine.any_failed(failed)) machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce::fabric
