// Pull on CPU ranks: what GPUs run on fabrics where posted writes collapse, for tests without one.
#include "host/cpu_lanes.h"
#include "host/machine.h"
#include "protocol/pull.h"

namespace pcie_allreduce::host {

using namespace baseline;

void run_pull(const Channel& channel, const Request& request, bool crowded, Watch& watch) {
  const ExactFloats exact;
  Machine machine(channel, request, crowded, watch);
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() {
    dispatch_world<Element>(channel.world, [&]<class, int kWorld>() {
      if (kind_algorithm(request.kind) == Algorithm::kTwoShot) {
        pull_two_shot<Element, kWorld>(machine, channel, request);
      } else {
        pull_one_shot<Element, kWorld>(machine, channel, request);
      }
    });
  });
}

}  // namespace pcie_allreduce::host
