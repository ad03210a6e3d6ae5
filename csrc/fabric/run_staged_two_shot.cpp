#include "fabric/runners.h"
#include "protocol/staged.h"

namespace pcie_allreduce::fabric {

void run_staged_two_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  on_units(lane, request, mapping, [&]<class Element>(auto& machine) {
    dispatch_world<Element>(channel.world,
                            [&]<class, int kWorld>() { staged_two_shot<Element, kWorld>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
