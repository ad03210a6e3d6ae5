#include "host/cpu_lanes.h"

#include "host/machine.h"
#include "protocol/exchange.h"
#include "protocol/one_shot.h"

namespace pcie_allreduce::host::PAR_ISA {
namespace {

struct Elements {
  using Float32 = PAR_ISA::Float32;
  using Float16 = PAR_ISA::Float16;
  using BFloat16 = PAR_ISA::BFloat16;
};

void run_one_shot(const Channel& channel, const Request& request, bool crowded, Watch& watch) {
  const ExactFloats exact;
  Machine machine(channel, request, crowded, watch);
  dispatch<Elements>(kind_dtype(request.kind), channel.world, [&]<class Element, int kWorld>() {
    one_shot<Element, kWorld>(machine, channel, request);
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

extern const CpuLanes lanes = {run_one_shot, run_exchange, PAR_NAME(PAR_ISA)};

}  // namespace pcie_allreduce::host::PAR_ISA
