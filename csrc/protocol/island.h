// Island push, for two groups of ranks with a slow link between: shards are summed inside each island, only float32
// partial sums cross, and sums fan out inside the island. The partial of the island of rank 0 comes first in both
// partners' sum, so all ranks agree bit for bit; it may differ from the flat order by float32 rounding before the one
// rounding at the end.
#pragma once

#include "protocol/shards.h"

namespace pcie_allreduce {

// The partner's partial of unit i of the shard: kSpread units, a shard apart so that warps store whole lines, awaited
// like as many sources.
template <int kSpread, class Machine, class Unit = typename Machine::Unit>
PAR_INLINE bool take_partial(Machine& machine, const Waiting& about, const IslandLayout& layout, Word i,
                             Unit (&theirs)[kSpread]) {
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  const Slots slots{about.area + layout.cross() + i * kUnitPacks, layout.shard, kSpread};
  return take(machine, about, Stage::kCross, (1u << kSpread) - 1u, slots, theirs);
}

template <class Element, int kHalf, class Machine>
PAR_INLINE void island(Machine& machine, const Channel& channel, const Request& given) {
  using Unit = typename Machine::Unit;
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  constexpr Word kSpread = Element::kPartialUnits;
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, given, call);
  const Request request = given;
  const Word place = channel.islands.place;
  const IslandLayout layout(channel.world, request.units(), kSpread);
  const Word units = request.units<Unit>();
  const Word shard = layout.shard / kUnitPacks;
  const auto mine = machine.share(shard);
  Word owner[kHalf - 1];
  PAR_UNROLL
  for (Word hop = 0; hop < kHalf - 1; ++hop) owner[hop] = after(place, hop + 1, kHalf);
  Unit ahead[kHalf - 1] = {};
  read_shards(machine, request, owner, shard, mine.first, ahead);
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    Pack* mate[kHalf - 1];
    PAR_UNROLL
    for (Word hop = 0; hop < kHalf - 1; ++hop) {
      mate[hop] = area_of(channel.slab[channel.islands.mates[owner[hop]]], call.phase, channel.area_packs);
    }
    Pack* partner = area_of(channel.slab[channel.islands.partner], call.phase, channel.area_packs) + layout.cross();
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      if (i != mine.first) read_shards(machine, request, owner, shard, i, ahead);
      PAR_UNROLL
      for (Word hop = 0; hop < kHalf - 1; ++hop) {
        if (owner[hop] * shard + i < units) {
          machine.put(mate[hop] + layout.scatter(place, owner[hop]) + i * kUnitPacks, encoded(ahead[hop]));
        }
      }
    }
    failed = !signatures_agree(machine, about, machine.once_a_block(channel.world - 1));

    const Word begin = place * shard;  // of the own shard
    const Word end = begin >= units ? 0 : (units - begin < shard ? units - begin : shard);
    const auto own_partial = [&](Word i, typename Element::Sum& sum) {
      Unit got[kHalf];
      const Unit own = encoded(machine.read(request, begin + i));
      const Slots slots{about.area + kLinePacks + i * kUnitPacks, layout.shard, place};
      if (!take_all(machine, about, Stage::kScatter, slots, own, got)) return false;
      PAR_UNROLL
      for (int source = 0; source < kHalf; ++source) Element::add(sum, got[source]);
      return true;
    };
    typename Element::Sum kept;  // of the lane's first unit, which on a GPU mostly is its only one
    for (Word i = mine.first; i < end && !failed; i += mine.step) {
      typename Element::Sum sum;
      failed = !own_partial(i, sum);
      if (failed) break;  // and sends nothing
      if (i == mine.first) kept = sum;
      Unit partial[kSpread];
      Element::partial(sum, partial);
      PAR_UNROLL
      for (Word part = 0; part < kSpread; ++part) {
        machine.put(partner + part * layout.shard + i * kUnitPacks, encoded(partial[part]));
      }
    }
    if (!failed) rearm(machine, channel, call);  // while the partials cross: the longest wait
    for (Word i = mine.first; i < end && !failed; i += mine.step) {
      // The others are summed again from the slots, beside the wait for the partner: a lane may own many.
      typename Element::Sum sum;
      Unit theirs[kSpread] = {};
      if (i == mine.first) {
        sum = kept;
      } else {
        failed = !own_partial(i, sum);
      }
      failed = failed || !take_partial(machine, about, layout, i, theirs);
      if (failed) break;
      Element::add_partial(sum, theirs);  // of two terms: the order does not matter
      const Unit total = encoded(rounded_once<Element>(machine, begin + i, sum));
      PAR_UNROLL
      for (Word hop = 0; hop < kHalf - 1; ++hop) {
        machine.put(mate[hop] + layout.gather(place, owner[hop]) + i * kUnitPacks, total);
      }
      machine.write(request, begin + i, total);
    }

    const Pack* gathered = about.area + layout.cross() + kSpread * layout.shard;
    const auto sums = [&](Word i) { return Slots{gathered + i * kUnitPacks, layout.shard, place}; };
    failed = failed || !take_sums<kHalf>(machine, about, request, mine, shard, place, sums);
  }

  if (machine.any_failed(failed)) {
    write_nan<Element>(machine, request, mine, shard);
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
