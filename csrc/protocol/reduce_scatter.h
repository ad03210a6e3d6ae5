// Reduce-scatter push: chunks to their owners, each of which sums its own. Every source sends at least a pack to every
// owner, and every rank awaits the signatures of all, so that who completes a call knows that all have begun it.
#pragma once

#include "protocol/chunks.h"

namespace pcie_allreduce {

template <class Element, int kWorld, class Machine>
PAR_INLINE void reduce_scatter(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const Word rank = channel.rank;
  const Word units = request.units<Unit>();
  const OneShotLayout layout(kWorld, request.units());
  const auto hops = machine.hops(kWorld);
  const auto places = machine.places(units, kWorld);
  const auto own = machine.own_places(units, kWorld);
  const Word first = after(rank, hops.first + 1, kWorld);
  Unit ahead = {};  // asked for beside the state of the call
  if (hops.first < hops.end && places.first < places.end) {
    ahead = machine.read(from_chunk(request, first), places.first);
  }
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    for_each_owner<kWorld>(rank, hops, [&](Word owner) {
      if (owner == rank || places.first >= places.end) return true;
      const Request chunk = from_chunk(request, owner);
      Pack* area = area_of(channel.slab[owner], call.phase, channel.area_packs);
      const Unit unit = owner == first ? ahead : machine.read(chunk, places.first);
      send_chunk(machine, chunk, places, unit, area + layout.slot(rank, owner));
      return true;
    });
    rearm(machine, channel, call);
    failed = !signatures_agree(machine, about, machine.once_a_block(channel.world - 1));
    const Request mine = from_chunk(request, rank);
    Word rehearsals = rehearsals_of(machine);
    for (Word i = own.first; i < own.end && !failed; i += own.step) {
      const Slots slots{about.area + kLinePacks + i * kUnitPacks, layout.stride, rank};
      failed = !take_and_sum<Element, kWorld>(machine, about, Stage::kScatter, slots, encoded(machine.read(mine, i)), i,
                                              rehearsals, [&](const Unit& sum) { machine.write(request, i, sum); });
    }
  }

  if (machine.any_failed(failed)) {
    for (Word i = own.first; i < own.end; i += own.step) machine.write(request, i, Element::nan());
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
