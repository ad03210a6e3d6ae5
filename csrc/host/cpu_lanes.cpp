#include "host/cpu_lanes.h"

#include "host/machine.h"
#include "protocol/exchange.h"
#include "protocol/island.h"
#include "protocol/one_shot.h"
#include "protocol/two_shot.h"

namespace pcie_allreduce::host::PAR_ISA {

void run_staged(const Channel& channel, const Request& request, bool crowded, Watch& watch);
void run_fused(const Channel& channel, const Request& request, const Norm& norm, bool crowded, Watch& watch);
void run_pull(const Channel& channel, const Request& request, bool crowded, Watch& watch);

namespace {

void run_all_reduce(const Channel& channel, const Request& request, bool crowded, Watch& watch) {
  const ExactFloats exact;
  Machine machine(channel, request, crowded, watch);
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() {
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

void run_exchange(const Channel& channel, Word* verdict, bool crowded, Watch& watch) {
  const Request none{};
  Machine machine(channel, none, crowded, watch);
  exchange_greetings(machine, channel, verdict);
}

#define PAR_NAME_OF(isa) #isa
#define PAR_NAME(isa) PAR_NAME_OF(isa)

}  // namespace

extern const CpuLanes lanes = {run_all_reduce, run_staged, run_pull, run_fused, run_exchange, PAR_NAME(PAR_ISA)};

}  // namespace pcie_allreduce::host::PAR_ISA
