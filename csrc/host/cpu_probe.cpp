#include "host/cpu_probe.h"

#include "host/machine.h"

namespace pcie_allreduce::host {

void run_experiment(const Channel& channel, const Experiment& experiment, Result* results, bool crowded, Watch& watch) {
  const Request none{};
  baseline::Machine machine(channel, none, crowded, watch);
  Prober prober(machine, channel, experiment, results, 0);
  prober.run();
}

}  // namespace pcie_allreduce::host
