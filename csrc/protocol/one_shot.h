// One-shot push: everyone sends everything to everyone, each sums in rank order. One pass over the wire, no flag, no
// fence, no barrier: (world - 1) times the payload leaves every rank, which is right for small payloads or few ranks.
#pragma once

#include "protocol/take.h"

namespace pcie_allreduce {

template <class Element, int kWorld, class Machine>
PAR_INLINE void one_shot(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  // By value from here on: a slot may alias anything, so what is behind a reference would be read again for every pack.
  const Request request = given;
  const Word rank = channel.rank;
  const OneShotLayout layout(kWorld, request.units());
  const auto mine = machine.share(request.units<Unit>());
  Unit ahead = {};  // asked for beside the state of the call and beside the stores, not behind them
  if (mine.first < mine.end) ahead = machine.read(request, mine.first);
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    Pack* to[kWorld - 1];
    PAR_UNROLL
    for (Word hop = 1; hop < kWorld; ++hop) {  // rank r sends to r + 1 first: nobody is everybody's first destination
      const Word reader = after(rank, hop, kWorld);
      to[hop - 1] = area_of(channel.slab[reader], call.phase, channel.area_packs) + layout.slot(rank, reader);
    }
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      const Unit unit = encoded(ahead);
      if (i + mine.step < mine.end) ahead = machine.read(request, i + mine.step);
      PAR_UNROLL
      for (Word hop = 1; hop < kWorld; ++hop) machine.put(to[hop - 1] + i * kUnitPacks, unit);
    }
    rearm(machine, channel, call);
    failed = !signatures_agree(machine, about, machine.once_a_block(channel.world - 1));
    const Slots slots{about.area + kLinePacks, layout.stride, rank};
    Word rehearsals = rehearsals_of(machine);
    for (Word i = mine.first; i < mine.end && !failed;
         i += mine.step) {  // a second loop: a GPU lane runs it once, a CPU streams
      const Unit own = encoded(machine.read(request, i));
      const Slots here{slots.first + i * kUnitPacks, slots.stride, rank};
      failed = !take_and_sum<Element, kWorld>(machine, about, Stage::kGather, here, own, i, rehearsals,
                                              [&](const Unit& sum) { machine.write(request, i, sum); });
    }
  }

  if (machine.any_failed(failed)) {  // every pack of a failed block is NaN, in this call and in all later ones
    for (Word i = mine.first; i < mine.end; i += mine.step) machine.write(request, i, Element::nan());
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
