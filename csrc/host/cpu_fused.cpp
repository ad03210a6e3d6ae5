// All-reduce, residual and RMSNorm on CPU ranks, by every algorithm.
#include "host/cpu_lanes.h"
#include "host/norm_machine.h"
#include "protocol/island.h"
#include "protocol/one_shot.h"
#include "protocol/two_shot.h"

namespace pcie_allreduce::host::PAR_ISA {

void run_fused(const Channel& channel, const Request& request, const Norm& norm, bool crowded, Watch& watch) {
  const ExactFloats exact;
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() {
    NormMachine<Element> machine(channel, request, norm, crowded, watch);
    switch (kind_algorithm(request.kind)) {
      case Algorithm::kTwoShot:
        return dispatch_world<Element>(
            channel.world, [&]<class, int kWorld>() { two_shot<Element, kWorld>(machine, channel, request); });
      case Algorithm::kIsland:
        return dispatch_half<Element>(channel.world,
                                      [&]<class, int kHalf>() { island<Element, kHalf>(machine, channel, request); });
      default:
        return dispatch_world<Element>(
            channel.world, [&]<class, int kWorld>() { one_shot<Element, kWorld>(machine, channel, request); });
    }
  });
}

}  // namespace pcie_allreduce::host::PAR_ISA
