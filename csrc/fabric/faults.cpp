#include "fabric/faults.h"

#include "fabric/faulty_lanes.h"
#include "fabric/odd_algorithms.h"

namespace pcie_allreduce::fabric {
namespace {

template <class LaneType>
std::unique_ptr<Lane> lane(Simulation& simulation, Rank& rank, Grid& grid, Word block, Word thread) {
  return std::make_unique<LaneType>(simulation, rank, grid, block, thread);
}

// Failures are another matter: a fault that shows without them is shown without them.
void untroubled(Scenario& scenario) {
  if (scenario.gives_up()) scenario.trouble = Trouble::kNone;
}
void other_dtype(Scenario& scenario) {
  scenario.trouble = Trouble::kOtherDtype;
  scenario.integers = true;
}
void killed(Scenario& scenario) {
  scenario.trouble = Trouble::kKilled;
  scenario.integers = true;
}
void three_areas(Scenario& scenario) {
  untroubled(scenario);
  scenario.areas = 3;
}
void loose_boundary(Scenario& scenario) {
  untroubled(scenario);
  scenario.boundary_drains = false;
}
// Units of one pack are planted; a cache line's are not.
void packs_only(Scenario& scenario) {
  untroubled(scenario);
  if (scenario.mapping == Mapping::kLines) scenario.mapping = Mapping::kShared;
}
// A multiprocessor for each block of those that wait, and none for whom they wait for.
void crowded(Scenario& scenario) {
  untroubled(scenario);
  scenario.multiprocessors = scenario.world - 1;
}
void roomy(Scenario& scenario) {
  untroubled(scenario);
  share_gpu(scenario);
}
void any_trouble(Scenario&) {}

std::vector<PlantedFault> faults_of_the_package() {
  const Entry* one_shot_alone = find_algorithm("one_shot");
  const std::vector<const Entry*> staged = {find_algorithm("staged_one_shot"), find_algorithm("staged_two_shot")};
  const std::vector<const Entry*> pull = {find_algorithm("pull_one_shot"), find_algorithm("pull_two_shot")};
  return {
      {"two_phases", "own memory with two phases", lane<TwoPhases>, {}, untroubled},
      {"no_rearm", "slots are never re-armed", lane<NoRearm>, {}, untroubled},
      {"loose_boundary", "a launch boundary does not complete stores to own memory", right_lane, {}, loose_boundary},
      {"rearm_this_range", "call k re-arms as many packs as itself uses", lane<RearmsThisRange>, {}, untroubled},
      {"own_areas", "each algorithm has its own area, all share one epoch", lane<OwnAreas>, {}, three_areas},
      {"padding_sent", "a padding pack is sent and not awaited", lane<SendsPadding>, {one_shot_alone}, packs_only},
      {"epoch_modulo_3", "phase = 32-bit epoch modulo 3", lane<EpochModuloThree>, {}, untroubled},
      {"early_epoch",
       "the epoch is advanced before every lane of the block has read it",
       lane<EarlyEpoch>,
       {},
       untroubled},
      {"frozen_epoch", "the host passes the epoch, and a graph freezes it", lane<FrozenEpoch>, {}, untroubled},
      {"own_line_only", "per-block epochs under a changing grid", lane<OwnLineOnly>, {}, untroubled},
      {"one_word_ready", "readiness tested on one word of four", right_lane, {one_word_one_shot()}, packs_only},
      {"raw_input", "EMPTY is not rewritten in the first stage", right_lane, {raw_one_shot()}, packs_only},
      {"raw_sums",
       "EMPTY is not rewritten in the second stage",
       lane<RewritesInputOnly>,
       {raw_sums_two_shot()},
       packs_only,
       negative_zero_two_shot()},
      {"epoch_before_wait", "the epoch is read before the dependency wait", lane<EpochBeforeWait>, {}, untroubled},
      {"send_before_wait", "data is sent before the dependency wait", lane<SendsBeforeWait>, {}, untroubled},
      {"idle_leaves_early",
       "an idle block does not wait for the predecessor",
       lane<IdleBlockLeavesEarly>,
       {},
       untroubled},
      {"failed_leaves_early",
       "a launch on a failed channel does not wait",
       lane<FailedBlockLeavesEarly>,
       {},
       any_trouble},
      {"no_room", "blocks that wait leave no multiprocessor alone", right_lane, {}, crowded},
      {"no_signature", "another dtype of equal bytes, and no signature", lane<NoSignature>, {}, other_dtype},
      {"stale_output", "a launch on a failed channel leaves its output alone", lane<StaleOutput>, {}, any_trouble},
      {"victim_named", "a rank that gives up does not heed what others say", lane<NamesVictims>, {}, killed},
      {"record_no_fence", "the record is valid before it is complete", lane<NoFence>, {}, any_trouble},
      {"staged_rearm", "staged: four phases, k - 1 re-armed", lane<StagedRearmsPrevious>, staged, untroubled},
      {"staged_rearm_3", "staged: three phases, k - 1 re-armed", lane<StagedThreePhases>, staged, untroubled},
      {"staged_one_copy", "staged: of the copies of sums one is re-armed", lane<StagedRearmsOneCopy>, staged,
       untroubled},
      {"staged_no_fence", "staged: re-armed without a fence", lane<NoFence>, staged, untroubled},
      {"pull_one_copy", "pull: one staging copy", lane<PullOneCopy>, pull, untroubled},
      {"pull_equal", "pull: flag == epoch", lane<PullEqual>, pull, untroubled},
      {"pull_no_fence", "pull: a flag without a fence before it", lane<NoFence>, pull, untroubled},
      {"pull_no_barrier", "pull: a flag before every lane has stored", lane<PullNoBarrier>, pull, untroubled},
  };
}

std::vector<PlantedFault> faults_of_models() {
  static const Entry scatter = reduce_scatter_model(true);
  static const Entry sparse_scatter = reduce_scatter_model(false);
  static const Entry gather = all_gather_model(true);
  static const Entry sparse_gather = all_gather_model(false);
  return {
      {"empty_shard_rs",
       "reduce-scatter alone: an empty shard sends nothing",
       right_lane,
       {&sparse_scatter},
       untroubled,
       &scatter},
      {"empty_shard_ag",
       "all-gather alone: an empty shard sends nothing",
       right_lane,
       {&sparse_gather},
       untroubled,
       &gather},
  };
}

}  // namespace

const std::vector<PlantedFault>& planted_faults() {
  static const std::vector<PlantedFault> faults = [] {
    std::vector<PlantedFault> all = faults_of_the_package();
    for (PlantedFault& fault : faults_of_models()) all.push_back(std::move(fault));
    return all;
  }();
  return faults;
}

// What is right although it looks like a fault: the models without their mistakes, and an all-reduce without
// signatures, whose empty shards do no harm.
const std::vector<PlantedFault>& controls() {
  static const std::vector<PlantedFault> right = [] {
    std::vector<PlantedFault> all;
    for (const PlantedFault& fault : planted_faults()) {
      if (fault.right != nullptr) all.push_back({fault.name, fault.what, right_lane, {fault.right}, fault.adjust});
    }
    all.push_back({"room", "ranks share a GPU and leave a multiprocessor alone", right_lane, {}, roomy});
    all.push_back({"unsigned", "no signatures, and nobody makes another call", lane<NoSignature>, {}, untroubled});
    return all;
  }();
  return right;
}

const PlantedFault* find_fault(const std::string& name) {
  for (const PlantedFault& fault : planted_faults()) {
    if (fault.name == name) return &fault;
  }
  return nullptr;
}

std::unique_ptr<Lane> right_lane(Simulation& simulation, Rank& rank, Grid& grid, Word block, Word thread) {
  return lane<Lane>(simulation, rank, grid, block, thread);
}

}  // namespace pcie_allreduce::fabric
