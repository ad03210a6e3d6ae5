// One schedule from start to end, and the same again with fewer or other decisions of the adversary.
#pragma once

#include <memory>

#include "fabric/simulation.h"

namespace pcie_allreduce::fabric {

struct Outcome {
  Violation violation;
  std::vector<Choice> hostile;  // decisions; with the scenario they replay it
  std::uint64_t steps;
  std::vector<std::string> timeline;  // empty unless asked for
};

Outcome run_seed(const Scenario& scenario, std::uint64_t seed, FiberPool& fibers, LaneMaker maker);
Outcome run_script(const Scenario& scenario, const std::vector<Choice>& script, FiberPool& fibers, LaneMaker maker,
                   bool tell);

}  // namespace pcie_allreduce::fabric
