#include "protocol/pull.h"

#include "fabric/runners.h"

namespace pcie_allreduce::fabric {

void run_pull_two_shot(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  on_units(lane, request, mapping, [&]<class Element>(auto& machine) {
    dispatch_world<Element>(channel.world,
                            [&]<class, int kWorld>() { pull_two_shot<Element, kWorld>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
