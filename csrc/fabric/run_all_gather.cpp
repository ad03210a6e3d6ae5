#include "protocol/all_gather.h"

#include "fabric/runners.h"

namespace pcie_allreduce::fabric {

void run_all_gather(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  on_units(lane, request, mapping, [&]<class Element>(auto& machine) {
    dispatch_world<Element>(channel.world,
                            [&]<class, int kWorld>() { all_gather<Element, kWorld>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
