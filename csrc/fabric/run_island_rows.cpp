#include "fabric/rows_machine.h"
#include "protocol/island.h"

namespace pcie_allreduce::fabric {

void run_island_rows(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  if (mapping == Mapping::kLines) return run_island(lane, channel, request, mapping);  // no part is whole lines there
  dispatch<PartialElementsOf<Pack>>(kind_dtype(request.kind), [&]<class Element>() {
    RowsMachine machine(lane, row_parts(request, channel.world / 2));
    dispatch_half<Element>(channel.world,
                           [&]<class, int kHalf>() { island<Element, kHalf>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
