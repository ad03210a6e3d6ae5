// Two-shot push: shards to their owners, the owners' sums to everyone, in one launch and without a barrier between.
// Each rank sends 2 (world - 1) / world times the payload, where one-shot sends world - 1 times.
#pragma once

#include "protocol/shards.h"

namespace pcie_allreduce {

template <class Element, int kWorld, class Machine>
PAR_INLINE void two_shot(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const Word rank = channel.rank;
  const TwoShotLayout layout(kWorld, request.units());
  const Word units = request.units<Unit>();
  const Word shard = layout.shard / kUnitPacks;
  const auto mine = machine.share(shard);  // a lane has the same place in every shard
  Word owner[kWorld - 1];                  // hop h: rank + 1 + h, so that nobody is everybody's first destination
  PAR_UNROLL
  for (Word hop = 0; hop < kWorld - 1; ++hop) owner[hop] = after(rank, hop + 1, kWorld);
  Unit ahead[kWorld - 1] = {};
  read_shards(machine, request, owner, shard, mine.first, ahead);  // beside the state of the call, not behind it
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    Pack* peer[kWorld - 1];
    PAR_UNROLL
    for (Word hop = 0; hop < kWorld - 1; ++hop) {
      peer[hop] = area_of(channel.slab[owner[hop]], call.phase, channel.area_packs);
    }
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      if (i != mine.first) read_shards(machine, request, owner, shard, i, ahead);
      PAR_UNROLL
      for (Word hop = 0; hop < kWorld - 1; ++hop) {
        if (owner[hop] * shard + i < units) {
          machine.put(peer[hop] + layout.scatter(rank, owner[hop]) + i * kUnitPacks, encoded(ahead[hop]));
        }
      }
    }
    rearm(machine, channel, call);
    failed = !signatures_agree(machine, about, machine.once_a_block(channel.world - 1));
    const Pack* scattered = about.area + kLinePacks;
    for (Word i = mine.first; i < mine.end && rank * shard + i < units && !failed; i += mine.step) {
      Unit got[kWorld];
      const Unit own = encoded(machine.read(request, rank * shard + i));
      if (!take_all(machine, about, Stage::kScatter, Slots{scattered + i * kUnitPacks, layout.shard, rank}, own, got)) {
        failed = true;  // sends nothing: its peers must not take NaN for a sum
        break;
      }
      const Unit sum = encoded(sum_in_rank_order<Element>(machine, rank * shard + i, got));
      PAR_UNROLL
      for (Word hop = 0; hop < kWorld - 1; ++hop) {
        machine.put(peer[hop] + layout.gather(rank, owner[hop]) + i * kUnitPacks, sum);
      }
      machine.write(request, rank * shard + i, sum);
    }
    const Pack* gathered = scattered + (kWorld - 1) * layout.shard;
    const auto sums = [&](Word i) { return Slots{gathered + i * kUnitPacks, layout.shard, rank}; };
    failed = failed || !take_sums<kWorld>(machine, about, request, mine, shard, rank, sums);
  }

  if (machine.any_failed(failed)) {
    write_nan<Element>(machine, request, mine, shard);
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
