// All-gather push: every rank's chunk to everyone. What is sent is what was given, but for the one word that means
// EMPTY: a -0.0 may come out as +0.0, and does so on all ranks, the sender's own among them.
#pragma once

#include "protocol/chunks.h"

namespace pcie_allreduce {

template <class Element, int kWorld, class Machine>
PAR_INLINE void all_gather(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const Word rank = channel.rank;
  const OneShotLayout layout(kWorld, request.units());
  const auto hops = machine.hops(kWorld);
  const auto places = machine.places(request.units<Unit>(), kWorld);
  const bool has_some = hops.first < hops.end && places.first < places.end;
  Unit ahead = {};  // asked for beside the state of the call
  if (has_some) ahead = machine.read(request, places.first);
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    for_each_owner<kWorld>(rank, hops, [&](Word reader) {
      if (reader == rank) {
        Unit unit = ahead;
        send_units(machine, request, places, unit,
                   [&](Word i, const Unit& own) { machine.write(to_chunk(request, rank), i, own); });
      } else {
        Pack* area = area_of(channel.slab[reader], call.phase, channel.area_packs);
        send_chunk(machine, request, places, ahead, area + layout.slot(rank, reader));
      }
      return true;
    });
    rearm(machine, channel, call);
    failed = !signatures_agree(machine, about, machine.once_a_block(channel.world - 1));
    failed = failed || !for_each_owner<kWorld>(rank, hops, [&](Word owner) {
               if (owner == rank) return true;
               const Pack* from = about.area + layout.slot(owner, rank);
               const Request chunk = to_chunk(request, owner);
               return take_places<Machine::kPlacesAtOnce>(
                   machine, about, owner, places, [&](Word i) { return from + i * kUnitPacks; },
                   [&](Word i, const Unit& unit) { machine.write(chunk, i, unit); });
             });
  }

  if (machine.any_failed(failed)) {
    for_each_owner<kWorld>(rank, hops, [&](Word owner) {
      const Request chunk = to_chunk(request, owner);
      for (Word i = places.first; i < places.end; i += places.step) machine.write(chunk, i, Element::nan());
      return true;
    });
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
