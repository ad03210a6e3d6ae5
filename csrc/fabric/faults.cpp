#include "fabric/faults.h"

#include "fabric/faulty_lanes.h"
#include "fabric/faulty_units.h"
#include "fabric/models.h"
#include "fabric/runners.h"
#include "protocol/one_shot.h"
#include "protocol/two_shot.h"

namespace pcie_allreduce::fabric {
namespace {

template <class LaneType>
std::unique_ptr<Lane> lane(Simulation& simulation, Rank& rank, Grid& grid, Word block, Word thread) {
  return std::make_unique<LaneType>(simulation, rank, grid, block, thread);
}

// Worlds 2 to 4 are enough to find a mistake, and soon compiled.
bool few(Word world) { return world <= 4; }

template <class Elements, class Unit, class Body>
void on_few(Lane& lane, const Channel& channel, const Request& request, Body&& body) {
  on_machine<Elements, Unit>(lane, request, [&]<class Element>(auto& machine) {
    if (channel.world == 2) body.template operator()<Element, 2>(machine);
    if (channel.world == 3) body.template operator()<Element, 3>(machine);
    if (channel.world == 4) body.template operator()<Element, 4>(machine);
  });
}

template <class Elements, class Unit>
void odd_one_shot_run(Lane& lane, const Channel& channel, const Request& request, Mapping) {
  on_few<Elements, Unit>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
    one_shot<Element, kWorld>(machine, channel, request);
  });
}
template <class Elements, class Unit>
void odd_two_shot_run(Lane& lane, const Channel& channel, const Request& request, Mapping) {
  on_few<Elements, Unit>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
    two_shot<Element, kWorld>(machine, channel, request);
  });
}
template <HostSlots kSlots>
void run_host_staged(Lane& lane, const Channel& channel, const Request& request, Mapping) {
  on_few<PackElements<Pack>, Pack>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
    host_staged<kSlots, Element, kWorld>(machine, channel, request);
  });
}
template <Pull kPull>
void run_pull(Lane& lane, const Channel& channel, const Request& request, Mapping) {
  on_few<PackElements<Pack>, Pack>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
    pull<kPull, Element, kWorld>(machine, channel, request);
  });
}
template <bool kAlwaysOne>
void run_reduce_scatter(Lane& lane, const Channel& channel, const Request& request, Mapping) {
  on_few<PackElements<Pack>, Pack>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
    reduce_scatter<kAlwaysOne, Element, kWorld>(machine, channel, request);
  });
}
template <bool kAlwaysOne>
void run_all_gather(Lane& lane, const Channel& channel, const Request& request, Mapping) {
  on_few<PackElements<Pack>, Pack>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
    all_gather<kAlwaysOne, Element, kWorld>(machine, channel, request);
  });
}

Word no_link(const Channel&, const Request&, Word, Word) { return 0; }
Word owned_packs(Word world, Word rank, Word packs) {
  const Range shard = pack_shard(world, rank, packs);
  return shard.end - shard.first;
}
template <bool kAlwaysOne>
Word reduce_scatter_link(const Channel& channel, const Request& request, Word, Word reader) {
  return at_least(kAlwaysOne, owned_packs(channel.world, reader, request.units()));
}
template <bool kAlwaysOne>
Word all_gather_link(const Channel& channel, const Request& request, Word, Word) {
  return at_least(kAlwaysOne, owned_packs(channel.world, channel.rank, request.units()));
}

using Run = void (*)(Lane&, const Channel&, const Request&, Mapping);
using Link = Word (*)(const Channel&, const Request&, Word, Word);
Entry model(const char* name, Collective collective, Run run, Link link) {
  return {name, Algorithm::kOneShot, collective, few, run, link, nullptr, true};
}

template <HostSlots kSlots>
const Entry* host_staged_model() {
  static const Entry entry = model("host_staged", Collective::kAllReduce, run_host_staged<kSlots>, no_link);
  return &entry;
}
template <Pull kPull>
const Entry* pull_model() {
  static const Entry entry = model("pull", Collective::kAllReduce, run_pull<kPull>, no_link);
  return &entry;
}
template <bool kAlwaysOne>
const Entry* reduce_scatter_model() {
  static const Entry entry = model("reduce_scatter", Collective::kReduceScatter, run_reduce_scatter<kAlwaysOne>,
                                   reduce_scatter_link<kAlwaysOne>);
  return &entry;
}
template <bool kAlwaysOne>
const Entry* all_gather_model() {
  static const Entry entry =
      model("all_gather", Collective::kAllGather, run_all_gather<kAlwaysOne>, all_gather_link<kAlwaysOne>);
  return &entry;
}

// An algorithm of the package with another unit or other elements.
template <class Elements, class Unit>
const Entry* odd_one_shot() {
  static const Entry entry = [] {
    Entry odd = *find_algorithm("one_shot");
    odd.serves = few;
    odd.run = odd_one_shot_run<Elements, Unit>;
    return odd;
  }();
  return &entry;
}
template <class Elements, class Unit>
const Entry* odd_two_shot() {
  static const Entry entry = [] {
    Entry odd = *find_algorithm("two_shot");
    odd.serves = few;
    odd.run = odd_two_shot_run<Elements, Unit>;
    return odd;
  }();
  return &entry;
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
void any_trouble(Scenario&) {}

constexpr HostSlots kRightSlots{4, 2, true};
constexpr Pull kRightPull{2, false};

std::vector<PlantedFault> faults_of_the_package() {
  const Entry* raw = odd_one_shot<PackElements<RawPack>, RawPack>();
  const Entry* one_word = odd_one_shot<PackElements<OneWordPack>, OneWordPack>();
  const Entry* negative = odd_two_shot<NegativeZeroElements<Pack>, Pack>();
  const Entry* raw_sums = odd_two_shot<NegativeZeroElements<RawPack>, RawPack>();
  const Entry* one_shot_alone = find_algorithm("one_shot");
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
      {"one_word_ready", "readiness tested on one word of four", right_lane, {one_word}, packs_only},
      {"raw_input", "EMPTY is not rewritten in the first stage", right_lane, {raw}, packs_only},
      {"raw_sums",
       "EMPTY is not rewritten in the second stage",
       lane<RewritesInputOnly>,
       {raw_sums},
       packs_only,
       negative},
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
      {"no_signature", "another dtype of equal bytes, and no signature", lane<NoSignature>, {}, other_dtype},
      {"stale_output", "a launch on a failed channel leaves its output alone", lane<StaleOutput>, {}, any_trouble},
      {"victim_named", "a rank that gives up does not heed what others say", lane<NamesVictims>, {}, killed},
      {"record_no_fence", "the record is valid before it is complete", lane<RecordWithoutFence>, {}, any_trouble},
  };
}

std::vector<PlantedFault> faults_of_models() {
  const Entry* slots = host_staged_model<kRightSlots>();
  const Entry* three = host_staged_model<HostSlots{3, 1, true}>();
  const Entry* four = host_staged_model<HostSlots{4, 1, true}>();
  const Entry* no_fence = host_staged_model<HostSlots{4, 2, false}>();
  const Entry* staging = pull_model<kRightPull>();
  const Entry* one_copy = pull_model<Pull{1, false}>();
  const Entry* equal = pull_model<Pull{2, true}>();
  const Entry* scatter = reduce_scatter_model<true>();
  const Entry* gather = all_gather_model<true>();
  return {
      {"host_rearm_3", "host slots: three phases, k - 1 re-armed", right_lane, {three}, untroubled, slots},
      {"host_rearm_4", "host slots: four phases, k - 1 re-armed", right_lane, {four}, untroubled, slots},
      {"host_no_fence", "host slots: re-armed without a fence", right_lane, {no_fence}, untroubled, slots},
      {"pull_one_copy", "pull: one staging copy", right_lane, {one_copy}, untroubled, staging},
      {"pull_equal", "pull: flag == epoch", right_lane, {equal}, untroubled, staging},
      {"empty_shard_rs",
       "reduce-scatter alone: an empty shard sends nothing",
       right_lane,
       {reduce_scatter_model<false>()},
       untroubled,
       scatter},
      {"empty_shard_ag",
       "all-gather alone: an empty shard sends nothing",
       right_lane,
       {all_gather_model<false>()},
       untroubled,
       gather},
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
