#include "fabric/shrink.h"

#include <algorithm>

namespace pcie_allreduce::fabric {
namespace {

constexpr int kAdversaries = 400;          // tried on every smaller scenario ...
constexpr std::uint64_t kSteps = 200'000;  // ... and not more steps than these
constexpr int kScripts = 4000;             // tried in all when decisions are taken back

using Smaller = std::vector<Scenario>;

template <class Change>
void offer(Smaller& smaller, const Scenario& scenario, Change&& change) {
  Scenario candidate = scenario;
  change(candidate);
  smaller.push_back(std::move(candidate));
}

void fewer_calls(Smaller& smaller, const Scenario& scenario, const Violation& violation) {
  const Word calls = static_cast<Word>(scenario.calls.size());
  if (violation.call + 1 < calls) offer(smaller, scenario, [&](Scenario& s) { s.calls.resize(violation.call + 1); });
  for (Word call = 0; call < calls && calls > 1; ++call) {
    if (scenario.trouble != Trouble::kNone && scenario.troubled_call == call) continue;
    offer(smaller, scenario, [&](Scenario& s) {
      s.calls.erase(s.calls.begin() + call);
      s.troubled_call -= s.troubled_call > call;
    });
  }
}

void fewer_ranks(Smaller& smaller, const Scenario& scenario) {
  for (const Word fewer : {1u, 2u}) {
    if (scenario.world < 2 + fewer) continue;
    const Word world = scenario.world - fewer;
    const auto served = [&](const CallPlan& plan) { return plan.algorithm->serves(world); };
    if (!std::all_of(scenario.calls.begin(), scenario.calls.end(), served)) continue;
    offer(smaller, scenario, [&](Scenario& s) {
      s.world = world;
      s.troubled_rank = std::min(s.troubled_rank, world - 1);
      s.sum_copies = std::min(s.sum_copies, world);
      s.first_island = (1u << (world / 2)) - 1;
    });
  }
}

void smaller_calls(Smaller& smaller, const Scenario& scenario, const Entry& simplest) {
  for (std::size_t call = 0; call < scenario.calls.size(); ++call) {
    const CallPlan& plan = scenario.calls[call];
    if (plan.algorithm != &simplest)
      offer(smaller, scenario, [&](Scenario& s) { s.calls[call].algorithm = &simplest; });
    const Word pack = pack_elements(plan.dtype);
    for (const Word elements : {1u, pack, plan.elements / 2, plan.elements - std::min(plan.elements, pack)}) {
      if (elements == 0 || elements >= plan.elements) continue;
      offer(smaller, scenario, [&](Scenario& s) { s.calls[call].elements = elements; });
    }
    if (plan.dependent) offer(smaller, scenario, [&](Scenario& s) { s.calls[call].dependent = false; });
    if (plan.in_place) offer(smaller, scenario, [&](Scenario& s) { s.calls[call].in_place = false; });
    for (Word rank = 0; rank < scenario.world; ++rank) {
      if (plan.shape[rank].blocks > 1)
        offer(smaller, scenario, [&](Scenario& s) { --s.calls[call].shape[rank].blocks; });
      if (plan.shape[rank].threads > 1)
        offer(smaller, scenario, [&](Scenario& s) { --s.calls[call].shape[rank].threads; });
    }
  }
}

void simpler(Smaller& smaller, const Scenario& scenario, const Entry& simplest) {
  offer(smaller, scenario, [&](Scenario& s) {
    for (CallPlan& plan : s.calls) plan.algorithm = &simplest;
  });
  if (scenario.sum_copies > 1) offer(smaller, scenario, [](Scenario& s) { s.sum_copies = 1; });
  if (scenario.stewards > 1) offer(smaller, scenario, [](Scenario& s) { s.stewards = 1; });
  if (scenario.mapping == Mapping::kStewards)
    offer(smaller, scenario, [](Scenario& s) { s.mapping = Mapping::kShared; });
  if (scenario.first_call != 0) offer(smaller, scenario, [](Scenario& s) { s.first_call = 0; });
  if (scenario.first_phase != 0) offer(smaller, scenario, [](Scenario& s) { s.first_phase = 0; });
  if (scenario.troubled_access > 1) offer(smaller, scenario, [](Scenario& s) { s.troubled_access /= 2; });
  if (scenario.trouble != Trouble::kNone) offer(smaller, scenario, [](Scenario& s) { s.trouble = Trouble::kNone; });
  const bool one_shape = std::all_of(scenario.calls.begin(), scenario.calls.end(), [&](const CallPlan& plan) {
    return std::all_of(plan.shape.begin(), plan.shape.end(), [](Shape s) { return s.blocks == 1 && s.threads == 1; });
  });
  if (one_shape) return;
  for (const Shape shape : {Shape{1, 1}, Shape{2, 1}, Shape{1, 2}, Shape{1, 3}, Shape{3, 1}, Shape{2, 2}}) {
    const auto has = [&](const CallPlan& plan) {
      return std::all_of(plan.shape.begin(), plan.shape.end(),
                         [&](Shape s) { return s.blocks == shape.blocks && s.threads == shape.threads; });
    };
    if (std::all_of(scenario.calls.begin(), scenario.calls.end(), has)) continue;
    offer(smaller, scenario, [&](Scenario& s) {
      for (CallPlan& plan : s.calls) plan.shape.fill(shape);
    });
  }
}

// What can only go down, so that shrinking ends.
std::uint64_t size_of(const Scenario& scenario, const Entry& simplest) {
  std::uint64_t size = scenario.calls.size() * 40 + scenario.world * 60 + scenario.stewards + scenario.sum_copies +
                       10 * (scenario.mapping == Mapping::kStewards) + (scenario.first_call != 0) +
                       (scenario.first_phase != 0) + 20 * (scenario.trouble != Trouble::kNone);
  for (const CallPlan& plan : scenario.calls) {
    size += plan.elements + 5 * plan.dependent + plan.in_place + 100 * (plan.algorithm != &simplest);
    for (Word rank = 0; rank < scenario.world; ++rank) size += 4 * plan.shape[rank].blocks * plan.shape[rank].threads;
  }
  return size * 4096 + scenario.troubled_access;
}

Smaller candidates(const Scenario& scenario, const Violation& violation, const Entry& simplest) {
  Smaller smaller;
  fewer_calls(smaller, scenario, violation);
  fewer_ranks(smaller, scenario);
  simpler(smaller, scenario, simplest);
  smaller_calls(smaller, scenario, simplest);
  std::erase_if(smaller,
                [&](const Scenario& candidate) { return size_of(candidate, simplest) >= size_of(scenario, simplest); });
  return smaller;
}

// The adversary that was found first, then others of its mood and of one more.
bool fails_too(const Scenario& scenario, const Outcome& found, Outcome& outcome, FiberPool& fibers, LaneMaker maker) {
  outcome = run_script(scenario, found.hostile, fibers, maker, false);
  if (outcome.violation.breach == found.violation.breach) return true;
  Scenario other = scenario;
  std::uint64_t steps = 0;
  for (int adversary = 0; adversary < kAdversaries && steps < kSteps; ++adversary) {
    other.mood = adversary % 2 == 0 ? scenario.mood : Mood{24, 64, 160, 64, 16};
    outcome = run_seed(other, static_cast<std::uint64_t>(adversary), fibers, maker);
    steps += outcome.steps;
    if (outcome.violation.breach == found.violation.breach) return true;
  }
  return false;
}

std::vector<Choice> without(const std::vector<Choice>& script, std::size_t first, std::size_t count) {
  std::vector<Choice> rest(script.begin(), script.begin() + static_cast<std::ptrdiff_t>(first));
  rest.insert(rest.end(), script.begin() + static_cast<std::ptrdiff_t>(std::min(first + count, script.size())),
              script.end());
  return rest;
}

Outcome fewer_decisions(const Scenario& scenario, Outcome outcome, FiberPool& fibers, LaneMaker maker) {
  int left = kScripts;
  for (std::size_t group = std::max<std::size_t>(outcome.hostile.size(), 1); group > 0 && left > 0;) {
    bool fewer = false;
    for (std::size_t first = 0; first < outcome.hostile.size() && left > 0; --left) {
      Outcome tried = run_script(scenario, without(outcome.hostile, first, group), fibers, maker, false);
      if (tried.violation.breach == outcome.violation.breach && tried.hostile.size() < outcome.hostile.size()) {
        outcome = std::move(tried);
        fewer = true;
      } else {
        first += group;
      }
    }
    if (!fewer || group > outcome.hostile.size()) group /= 2;
  }
  return outcome;
}

}  // namespace

Shortest shrink(const Scenario& scenario, const Outcome& found, const Entry& simplest, FiberPool& fibers,
                LaneMaker maker) {
  Shortest shortest{scenario, found};
  Smaller smaller = candidates(scenario, found.violation, simplest);
  // After a success it goes on from where it is: what did not help before will hardly help now.
  for (std::size_t at = 0, in_vain = 0; in_vain < smaller.size(); ++at) {
    const Scenario candidate = smaller[at % smaller.size()];
    Outcome outcome;
    if (!fails_too(candidate, shortest.outcome, outcome, fibers, maker)) {
      ++in_vain;
      continue;
    }
    shortest = {candidate, std::move(outcome)};
    smaller = candidates(shortest.scenario, shortest.outcome.violation, simplest);
    in_vain = 0;
  }
  shortest.outcome = fewer_decisions(shortest.scenario, std::move(shortest.outcome), fibers, maker);
  shortest.outcome = run_script(shortest.scenario, shortest.outcome.hostile, fibers, maker, true);
  return shortest;
}

}  // namespace pcie_allreduce::fabric
