// What a word of the simulated memory is, in words: for the timeline.
#pragma once

#include "fabric/simulation.h"

namespace pcie_allreduce::fabric {

std::string place_of(const Simulation& simulation, Word word, Word call);

}  // namespace pcie_allreduce::fabric
