// An algorithm of csrc/protocol/ on a lane: element, world and unit become template arguments here.
#pragma once

#include "fabric/machine.h"
#include "protocol/owners.h"

namespace pcie_allreduce::fabric {

// body.template operator()<Element>(machine), for the dtype of the call and one kind of unit.
template <class Elements, class Unit, class Body>
void on_machine(Lane& lane, const Request& request, Body&& body) {
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() {
    Machine<Unit> machine(lane);
    body.template operator()<Element>(machine);
  });
}

// ... and for the unit of the mapping.
template <template <class> class Elements = ElementsOf, class Body>
void on_units(Lane& lane, const Request& request, Mapping mapping, Body&& body) {
  if (mapping == Mapping::kLines) {
    on_machine<Elements<Line>, Line>(lane, request, body);
  } else {
    on_machine<Elements<Pack>, Pack>(lane, request, body);
  }
}

// Three rows, two, or one, whichever the payload has.
inline RowParts row_parts(const Request& request, Word owners) {
  const Word packs = request.units();
  const Word rows = packs % 3 == 0 ? 3 : (packs % 2 == 0 ? 2 : 1);
  return {packs / rows, whole_lines((packs / rows + owners - 1) / owners), rows};
}

// One file each, since compiling them is what takes long.
void run_one_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_two_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_two_shot_rows(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_island(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_island_rows(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_staged_one_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_staged_two_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_pull_one_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_pull_two_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_reduce_scatter(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_all_gather(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
void run_greeting(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);

}  // namespace pcie_allreduce::fabric
