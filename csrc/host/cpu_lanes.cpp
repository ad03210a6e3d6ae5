#include "host/cpu_lanes.h"

#include "host/machine.h"
#include "host/push.h"
#include "protocol/exchange.h"

namespace pcie_allreduce::host::PAR_ISA {

namespace {

void run_all_reduce(const Channel& channel, const Request& request, bool crowded, Watch& watch) {
  const ExactFloats exact;
  Machine machine(channel, request, crowded, watch);
  dispatch<Elements>(kind_dtype(request.kind), [&]<class Element>() { push<Element>(machine, channel, request); });
}

void run_exchange(const Channel& channel, Word* verdict, bool crowded, Watch& watch) {
  const Request none{};
  Machine machine(channel, none, crowded, watch);
  exchange_greetings(machine, channel, verdict);
}

#define PAR_NAME_OF(isa) #isa
#define PAR_NAME(isa) PAR_NAME_OF(isa)

}  // namespace

extern const CpuLanes lanes = {run_all_reduce, run_exchange, PAR_NAME(PAR_ISA)};

}  // namespace pcie_allreduce::host::PAR_ISA
