// The experiments of the start-up probe on a CPU rank.
#pragma once

#include "host/cpu_lanes.h"
#include "protocol/probe.h"

namespace pcie_allreduce::host {

// results: kProbeResults of them.
void run_experiment(const Channel& channel, const Experiment& experiment, Result* results, bool crowded, Watch& watch);

}  // namespace pcie_allreduce::host
