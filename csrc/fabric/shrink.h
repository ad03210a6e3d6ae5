// From a failure to the shortest schedule that fails in the same way: first the scenario is made smaller, field by
// field, each time trying a few fresh adversaries; then the adversary's decisions are taken back, in ever smaller
// groups.
#pragma once

#include "fabric/schedule.h"

namespace pcie_allreduce::fabric {

struct Shortest {
  Scenario scenario;
  Outcome outcome;
};

// `simplest`: the algorithm that any call may use instead of its own.
Shortest shrink(const Scenario& scenario, const Outcome& found, const Entry& simplest, FiberPool& fibers,
                LaneMaker maker);

}  // namespace pcie_allreduce::fabric
