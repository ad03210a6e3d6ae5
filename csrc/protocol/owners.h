// What the pushing algorithms with owners share. A lane has owners and places in their shards: on a GPU one owner,
// since lanes are many there and what each of them does is to be short; on a CPU all of them. It may sum other places
// than those that it sends: a call's own sums come before the sums of others, so nobody waits for who waits for him.
#pragma once

#include "protocol/take.h"

namespace pcie_allreduce {

constexpr Word kNowhere = ~0u;

// Rows of which every owner has a part, where a machine keeps rows together.
struct RowParts {
  Word row;   // units
  Word part;  // units of a row that an owner has: whole lines, and the last ones may be short or empty
  Word rows;
  PAR_INLINE constexpr Word place_of(Word owner, Word row_index, Word place) const {
    const Word at = owner * part + place;
    return at < row ? row_index * row + at : kNowhere;
  }
  PAR_INLINE constexpr Word units(Word owners) const { return rows * part * owners; }  // that the shards are made for
};

// Where place i of an owner's shard stands in the payload; no less than its length, where that shard has no such place.
template <class Machine>
PAR_INLINE Word place_of(const Machine& machine, Word owner, Word shard, Word i) {
  if constexpr (requires { machine.place_of(owner, i); }) {
    return machine.place_of(owner, i);
  } else {
    return owner * shard + i;
  }
}
template <class Machine>
PAR_INLINE Word packs_for_shards(const Machine& machine, const Request& request, Word owners) {
  if constexpr (requires { machine.parts(); }) {
    return machine.parts().units(owners);
  } else {
    return request.units();
  }
}

// `visit(owner)` for the owners of a lane, until it says false. Hop h leads h + 1 places on in a ring, so that nobody
// is everybody's first destination; the last hop is the reader's own place.
template <int kOwners, class Hops, class Visit>
PAR_INLINE bool for_each_owner(Word own, const Hops& hops, const Visit& visit) {
  for (Word hop = hops.first; hop < hops.end; hop += hops.step) {
    if (!visit(after(own, hop + 1, kOwners))) return false;
  }
  return true;
}

// A lane's first unit is asked for beside the state of the call, not behind it. `at(owner, i)`: as place_of.
template <int kOwners, class Machine, class Hops, class Places, class At>
class ShardInput {
 public:
  using Unit = typename Machine::Unit;
  PAR_INLINE ShardInput(Machine& machine, const Request& request, Word own, const Hops& hops, const Places& places,
                        const At& at)
      : machine_(machine), request_(request), places_(places), at_(at), first_(after(own, hops.first + 1, kOwners)) {
    if (hops.first < hops.end && has(first_, places.first)) ahead_ = machine.read(request, at(first_, places.first));
  }
  PAR_INLINE bool has(Word owner, Word i) const { return i < places_.end && at_(owner, i) < request_.units<Unit>(); }
  PAR_INLINE Unit read(Word owner, Word i) const {
    return owner == first_ && i == places_.first ? ahead_ : machine_.read(request_, at_(owner, i));
  }
  // Every unit of an owner, encoded, to where `put(i, unit)` stores it, each read beside the store of the one before.
  template <class Put>
  PAR_INLINE void send(Word owner, const Put& put) const {
    Unit next = {};
    if (has(owner, places_.first)) next = read(owner, places_.first);
    for (Word i = places_.first; i < places_.end; i += places_.step) {
      const Unit unit = encoded(next);
      const Word then = i + places_.step;
      if (has(owner, then)) next = machine_.read(request_, at_(owner, then));
      if (has(owner, i)) put(i, unit);
    }
  }

 private:
  Machine& machine_;
  const Request& request_;
  const Places& places_;
  const At& at_;
  Word first_;
  Unit ahead_ = {};
};

template <int kOwners, class Machine, class Hops, class Places, class At>
PAR_INLINE auto shard_input(Machine& machine, const Request& request, Word own, const Hops& hops, const Places& places,
                            const At& at) {
  return ShardInput<kOwners, Machine, Hops, Places, At>(machine, request, own, hops, places, at);
}

// The sums of one owner at all places of a lane, kAtOnce of them at a time. `slot(i)`: null where the shard has no such
// place; `write(i, sum)` takes each.
template <int kAtOnce, class Machine, class Places, class Slot, class Write>
PAR_INLINE bool take_places(Machine& machine, const Waiting& about, Word owner, const Places& places, const Slot& slot,
                            const Write& write) {
  struct Some {
    const Pack* at[kAtOnce];
    PAR_INLINE const Pack* of(Word k) const { return at[k]; }
  };
  for (Word i = places.first; i < places.end;) {
    Word at[kAtOnce];
    Some slots;
    Word awaited = 0;
    PAR_UNROLL
    for (Word k = 0; k < kAtOnce; ++k, i += places.step) {
      at[k] = i;
      slots.at[k] = i < places.end ? slot(i) : nullptr;
      if (slots.at[k] != nullptr) awaited |= 1u << k;
    }
    typename Machine::Unit sums[kAtOnce] = {};
    if (!take(machine, about, Stage::kGather, awaited, slots, sums, 1u << owner)) return false;
    PAR_UNROLL
    for (Word k = 0; k < kAtOnce; ++k) {
      if (awaited >> k & 1u) write(at[k], sums[k]);
    }
  }
  return true;
}

// Every unit of a failed block, in this call and in all later ones.
template <class Element, int kOwners, class Machine, class Hops, class Places, class Own, class At>
PAR_INLINE void clear_places(Machine& machine, const Request& request, Word own, const Hops& hops, const Places& places,
                             const Own& summed, const At& at) {
  const auto clear = [&](Word owner, const auto& mine) {
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      if (at(owner, i) < request.units<typename Machine::Unit>()) machine.write(request, at(owner, i), Element::nan());
    }
  };
  clear(own, summed);
  for_each_owner<kOwners>(own, hops, [&](Word owner) {
    if (owner != own) clear(owner, places);
    return true;
  });
}

}  // namespace pcie_allreduce
