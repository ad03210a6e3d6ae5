// The staged algorithms on CPU ranks: what GPUs without P2P run, for tests without one. Apart from the others because
// all of them together take a compiler minutes.
#include "host/cpu_lanes.h"
#include "host/machine.h"
#include "protocol/staged.h"

namespace pcie_allreduce::host {

using namespace baseline;

void run_staged(const Channel& channel, const Request& request, bool crowded, Watch& watch) {
  const ExactFloats exact;
  Machine machine(channel, request, crowded, watch);
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() {
    dispatch_world<Element>(channel.world, [&]<class, int kWorld>() {
      if (kind_algorithm(request.kind) == Algorithm::kTwoShot) {
        staged_two_shot<Element, kWorld>(machine, channel, request);
      } else {
        staged_one_shot<Element, kWorld>(machine, channel, request);
      }
    });
  });
}

}  // namespace pcie_allreduce::host
