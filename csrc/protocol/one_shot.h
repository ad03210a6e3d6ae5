// One-shot push: everyone sends everything to everyone, each sums in rank order. One pass over the wire, no flag, no
// fence, no barrier: (world - 1) times the payload leaves every rank, which is right for small payloads or few ranks.
#pragma once

#include "protocol/take.h"

namespace pcie_allreduce {

template <class Element, int kWorld>
PAR_INLINE Pack sum_in_rank_order(const Pack (&got)[kWorld]) {
  typename Element::Sum sum;  // starts at +0.0f, so it never ends at -0.0f
  PAR_UNROLL
  for (int source = 0; source < kWorld; ++source) Element::add(sum, got[source]);
  return Element::rounded(sum);
}

template <class Element, int kWorld, class Machine>
PAR_INLINE void one_shot(Machine& machine, const Channel& channel, const Request& request) {
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, request, call);
  const Word rank = channel.rank;
  const OneShotLayout layout(kWorld, request.packs());
  const Range mine = machine.share(request.packs());
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    // Two loops: a GPU lane runs each about once, a CPU rank streams. Rank r sends to r + 1 first, so that no rank is
    // everybody's first destination.
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      const Pack pack = encoded(machine.read(request, i));
  PAR_UNROLL
      for (Word hop = 1; hop < kWorld; ++hop) {
        const Word reader = rank + hop < kWorld ? rank + hop : rank + hop - kWorld;
        machine.put(area_of(channel.slab[reader], call.phase, channel.area_packs) + layout.slot(rank, reader) + i,
                    pack);
      }
    }
    SignatureCheck<Machine> signatures(machine, about);
    for (Word i = mine.first; i < mine.end && !failed; i += mine.step) {
      Pack got[kWorld];
      const Pack own = encoded(machine.read(request, i));
      failed = !take_all(machine, about, Stage::kGather, about.area + kLinePacks + i, layout.stride, got);
      if (failed) break;
  PAR_UNROLL
      for (Word source = 0; source < kWorld; ++source) {
        if (source == rank) got[source] = own;
      }
      machine.write(request, i, sum_in_rank_order<Element>(got));
    }
    failed = failed || !signatures.agrees(machine, about);
  }

  if (machine.any_failed(failed)) {  // every pack of a failed block is NaN, in this call and in all later ones
    for (Word i = mine.first; i < mine.end; i += mine.step) machine.write(request, i, Element::nan());
    return;
  }
  machine.end_call(call, layout.used());
  rearm(machine, channel, call);
}

}  // namespace pcie_allreduce
