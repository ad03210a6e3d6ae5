#include "fabric/runners.h"
#include "protocol/exchange.h"

namespace pcie_allreduce::fabric {

void run_greeting(Lane& lane, const Channel& channel, const Request&, Mapping mapping) {
  if (mapping == Mapping::kLines) {
    Machine<Line> machine(lane);
    exchange_greetings(machine, channel, lane.verdict());
  } else {
    Machine<Pack> machine(lane);
    exchange_greetings(machine, channel, lane.verdict());
  }
}

}  // namespace pcie_allreduce::fabric
