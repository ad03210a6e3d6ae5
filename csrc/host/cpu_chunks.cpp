// Reduce-scatter and all-gather on CPU ranks.
#include "host/cpu_lanes.h"
#include "host/machine.h"
#include "protocol/all_gather.h"
#include "protocol/reduce_scatter.h"

namespace pcie_allreduce::host {

using namespace baseline;

void run_chunks(const Channel& channel, const Request& request, bool crowded, Watch& watch) {
  const ExactFloats exact;
  Machine machine(channel, request, crowded, watch);
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() {
    dispatch_world<Element>(channel.world, [&]<class, int kWorld>() {
      if (kind_algorithm(request.kind) == Algorithm::kAllGather) {
        all_gather<Element, kWorld>(machine, channel, request);
      } else {
        reduce_scatter<Element, kWorld>(machine, channel, request);
      }
    });
  });
}

}  // namespace pcie_allreduce::host
