#include "fabric/schedule.h"

#include "fabric/place.h"

namespace pcie_allreduce::fabric {
namespace {

Outcome run(const Scenario& scenario, Choices& choices, FiberPool& fibers, LaneMaker maker, Timeline* timeline) {
  Simulation simulation(scenario, choices, fibers, maker, timeline);
  Outcome outcome{simulation.run(), choices.hostile(), simulation.scheduler().steps(), {}};
  if (timeline != nullptr) {
    outcome.timeline = timeline->told([&](Word word, Word call) { return place_of(simulation, word, call); });
  }
  return outcome;
}

}  // namespace

Outcome run_seed(const Scenario& scenario, std::uint64_t seed, FiberPool& fibers, LaneMaker maker) {
  Choices choices(~seed);
  return run(scenario, choices, fibers, maker, nullptr);
}

Outcome run_script(const Scenario& scenario, const std::vector<Choice>& script, FiberPool& fibers, LaneMaker maker,
                   bool tell) {
  Choices choices(script);
  Timeline timeline;
  return run(scenario, choices, fibers, maker, tell ? &timeline : nullptr);
}

}  // namespace pcie_allreduce::fabric
