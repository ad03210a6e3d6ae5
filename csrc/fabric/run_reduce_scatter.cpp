#include "protocol/reduce_scatter.h"

#include "fabric/runners.h"

namespace pcie_allreduce::fabric {

void run_reduce_scatter(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  on_units(lane, request, mapping, [&]<class Element>(auto& machine) {
    dispatch_world<Element>(channel.world,
                            [&]<class, int kWorld>() { reduce_scatter<Element, kWorld>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
