#include "protocol/island.h"

#include "fabric/runners.h"

namespace pcie_allreduce::fabric {

void run_island(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  on_units<PartialElementsOf>(lane, request, mapping, [&]<class Element>(auto& machine) {
    dispatch_half<Element>(channel.world,
                           [&]<class, int kHalf>() { island<Element, kHalf>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
