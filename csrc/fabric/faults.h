// Mistakes that are tempting, each planted into a lane that is right otherwise, or into a model: a checker that does
// not find them proves nothing. csrc/protocol/ knows nothing of them.
#pragma once

#include "fabric/simulation.h"

namespace pcie_allreduce::fabric {

struct PlantedFault {
  const char* name;
  const char* what;
  LaneMaker maker;
  std::vector<const Entry*> algorithms;  // empty: those of the package
  void (*adjust)(Scenario&) = nullptr;   // what the mistake needs of the machine
  const Entry* right = nullptr;          // the same without the mistake, where the package has no such thing
};

const std::vector<PlantedFault>& planted_faults();
const std::vector<PlantedFault>& controls();  // nothing must be found in these
const PlantedFault* find_fault(const std::string& name);

std::unique_ptr<Lane> right_lane(Simulation& simulation, Rank& rank, Grid& grid, Word block, Word thread);

}  // namespace pcie_allreduce::fabric
