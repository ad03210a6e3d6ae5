// All-reduce, residual and RMSNorm on CPU ranks, by every algorithm.
#include "host/cpu_lanes.h"
#include "host/norm_machine.h"
#include "host/push.h"

namespace pcie_allreduce::host {

using namespace baseline;

void run_fused(const Channel& channel, const Request& request, const Norm& norm, bool crowded, Watch& watch) {
  const ExactFloats exact;
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() {
    NormMachine<Element> machine(channel, request, norm, crowded, watch);
    push<Element>(machine, channel, request);
  });
}

}  // namespace pcie_allreduce::host
