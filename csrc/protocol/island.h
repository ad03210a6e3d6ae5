// Island push, for two groups of ranks with a slow link between: shards are summed inside each island, only float32
// partial sums cross, and sums fan out inside the island. The partial of the island of rank 0 comes first in both
// partners' sum, so all ranks agree bit for bit; it may differ from the flat order by float32 rounding before the one
// rounding at the end.
#pragma once

#include "protocol/owners.h"

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
  const IslandLayout layout(channel.world, packs_for_shards(machine, request, kHalf), kSpread);
  const Word units = request.units<Unit>();
  const Word shard = layout.shard / kUnitPacks;
  const auto hops = machine.hops(kHalf);
  const auto places = machine.places(shard, kHalf);
  const auto mine = machine.own_places(shard, kHalf);
  const auto at = [&](Word owner, Word i) { return place_of(machine, owner, shard, i); };
  const auto input = shard_input<kHalf>(machine, request, place, hops, places, at);
  bool failed = call.failed;

  if (!failed) {
    send_signatures(machine, about);
    const auto area_of_mate = [&](Word owner) {
      return area_of(channel.slab[channel.islands.mates[owner]], call.phase, channel.area_packs);
    };
    for_each_owner<kHalf>(place, hops, [&](Word owner) {
      if (owner == place) return true;
      Pack* to = area_of_mate(owner) + layout.scatter(place, owner);
      input.send(owner, [&](Word i, const Unit& unit) { machine.put(to + i * kUnitPacks, unit); });
      return true;
    });
    failed = !signatures_agree(machine, about, machine.once_a_block(channel.world - 1));

    Pack* partner = area_of(channel.slab[channel.islands.partner], call.phase, channel.area_packs) + layout.cross();
    const auto own_partial = [&](Word i, typename Element::Sum& sum) {
      Unit got[kHalf];
      const Unit own = encoded(input.read(place, i));
      const Slots slots{about.area + kLinePacks + i * kUnitPacks, layout.shard, place};
      if (!take_all(machine, about, Stage::kScatter, slots, own, got)) return false;
      PAR_UNROLL
      for (int source = 0; source < kHalf; ++source) Element::add(sum, got[source]);
      return true;
    };
    typename Element::Sum kept;  // of the lane's first unit, which on a GPU mostly is its only one
    for (Word i = mine.first; i < mine.end && !failed; i += mine.step) {
      if (at(place, i) >= units) continue;
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
    for (Word i = mine.first; i < mine.end && !failed; i += mine.step) {
      if (at(place, i) >= units) continue;
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
      const Unit total = encoded(rounded_once<Element>(machine, at(place, i), sum));
      PAR_UNROLL
      for (Word hop = 1; hop < kHalf; ++hop) {
        const Word owner = after(place, hop, kHalf);
        machine.put(area_of_mate(owner) + layout.gather(place, owner) + i * kUnitPacks, total);
      }
      machine.write(request, at(place, i), total);
    }
    failed = failed || !for_each_owner<kHalf>(place, hops, [&](Word owner) {
               if (owner == place) return true;
               const Pack* from = about.area + layout.gather(owner, place);
               return take_places<Machine::kPlacesAtOnce>(
                   machine, about, owner, places,
                   [&](Word i) { return at(owner, i) < units ? from + i * kUnitPacks : nullptr; },
                   [&](Word i, const Unit& sum) { machine.write(request, at(owner, i), sum); });
             });
  }

  if (machine.any_failed(failed)) {
    clear_places<Element, kHalf>(machine, request, place, hops, places, mine, at);
    return;
  }
  machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce
