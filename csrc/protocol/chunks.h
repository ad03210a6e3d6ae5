// Collectives in which each rank has a chunk of the payload: what two-shot does in one launch, in two halves. A request
// has the bytes of one chunk; of reduce-scatter `in` has one for each rank, of all-gather `out` has, in rank order. A
// lane has owners, and places in their chunks.
#pragma once

#include "protocol/owners.h"

namespace pcie_allreduce {

PAR_INLINE Request from_chunk(const Request& request, Word owner) {
  Request one = request;
  one.in = static_cast<const char*>(request.in) + std::size_t{owner} * request.bytes;
  return one;
}
PAR_INLINE Request to_chunk(const Request& request, Word owner) {
  Request one = request;
  one.out = static_cast<char*>(request.out) + std::size_t{owner} * request.bytes;
  return one;
}

// The units of a lane in one chunk, encoded, to the chunk's slot. `first`: that of the lane's first place.
template <class Machine, class Places, class Unit = typename Machine::Unit>
PAR_INLINE void send_chunk(Machine& machine, const Request& chunk, const Places& places, const Unit& first,
                           Pack* slot) {
  constexpr Word kUnitPacks = sizeof(Unit) / sizeof(Pack);
  Unit ahead = first;
  send_units(machine, chunk, places, ahead,
             [&](Word i, const Unit& unit) { machine.put(slot + i * kUnitPacks, unit); });
}

}  // namespace pcie_allreduce
