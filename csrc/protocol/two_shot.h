// Two-shot push: shards to their owners, the owners' sums to everyone, in one launch and without a barrier between.
// Each rank sends 2 (world - 1) / world times the payload, where one-shot sends world - 1 times.
#pragma once

#include "protocol/owners.h"

namespace pcie_allreduce {

template <class Element, int kWorld, class Machine>
PAR_INLINE void two_shot(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const Word rank = channel.rank;
  const TwoShotLayout layout(kWorld, packs_for_shards(machine, request, kWorld));
  const Word units = request.units<Unit>();
  const Word shard = layout.shard / kUnitPacks;
  const auto hops = machine.hops(kWorld);
  const auto places = machine.places(shard, kWorld);
  const auto at = [&](Word owner, Word i) { return place_of(machine, owner, shard, i); };
  const auto own = machine.own_places(shard, kWorld);
  const auto input = shard_input<kWorld>(machine, request, rank, hops, places, at);
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    for_each_owner<kWorld>(rank, hops, [&](Word owner) {
      if (owner == rank) return true;
      Pack* to = area_of(channel.slab[owner], call.phase, channel.area_packs) + layout.scatter(rank, owner);
      input.send(owner, [&](Word i, const Unit& unit) { machine.put(to + i * kUnitPacks, unit); });
      return true;
    });
    rearm(machine, channel, call);
    failed = !signatures_agree(machine, about, machine.once_a_block(channel.world - 1));
    Word rehearsals = rehearsals_of(machine);
    for (Word i = own.first; i < own.end && !failed; i += own.step) {
      if (at(rank, i) >= units) continue;
      const Slots slots{about.area + kLinePacks + i * kUnitPacks, layout.shard, rank};
      const auto give = [&](const Unit& total) {
        const Unit sum = encoded(total);
        PAR_UNROLL
        for (Word hop = 1; hop < kWorld; ++hop) {
          const Word reader = after(rank, hop, kWorld);
          Pack* area = area_of(channel.slab[reader], call.phase, channel.area_packs);
          machine.put(area + layout.gather(rank, reader) + i * kUnitPacks, sum);
        }
        machine.write(request, at(rank, i), sum);
      };
      // Who fails sends nothing: its peers must not take NaN for a sum.
      failed = !take_and_sum<Element, kWorld>(machine, about, Stage::kScatter, slots, encoded(input.read(rank, i)),
                                              at(rank, i), rehearsals, give);
    }
    failed = failed || !for_each_owner<kWorld>(rank, hops, [&](Word owner) {
               if (owner == rank) return true;
               const Pack* from = about.area + layout.gather(owner, rank);
               return take_places<Machine::kPlacesAtOnce>(
                   machine, about, owner, places,
                   [&](Word i) { return at(owner, i) < units ? from + i * kUnitPacks : nullptr; },
                   [&](Word i, const Unit& sum) { machine.write(request, at(owner, i), sum); });
             });
  }

  if (machine.any_failed(failed)) {
    clear_places<Element, kWorld>(machine, request, rank, hops, places, own, at);
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
