#include "fabric/scenario.h"

#include <algorithm>

#include "fabric/algorithms.h"
#include "protocol/wait.h"

namespace pcie_allreduce::fabric {
namespace {

// Big worlds are costly: all send to all.
Word most_packs(Word world) { return std::clamp(320 / (world * (world - 1)), 6u, 40u); }

Word any_island(Random& random, Word world) {
  Word island = 0;
  for (Word left = world / 2; left > 0;) {
    const Word rank = random.below(world);
    left -= (island >> rank & 1u) == 0;
    island |= 1u << rank;
  }
  return island;
}

Shape any_shape(Random& random, Mapping mapping) {
  if (mapping == Mapping::kLines) return {1, 1};
  return {random.between(1, kMostBlocks), random.between(1, 3)};
}

Word any_size(Random& random, Word world, Dtype dtype) {
  if (random.once_in(6)) return random.between(1, pack_elements(dtype));
  const Word packs = random.once_in(2) ? random.between(1, 4) : random.between(1, most_packs(world));
  return packs * pack_elements(dtype) - random.below(random.once_in(2) ? pack_elements(dtype) : 1);
}

void draw_calls(Random& random, Scenario& scenario, const std::vector<const Entry*>& algorithms) {
  static constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16};
  const bool alike = algorithms[0]->model || scenario.transport == Transport::kPull;
  const Word shapes = random.below(alike ? 4 : 5);  // one for all; one a call; one a call and rank
  const Word dependent = random.below(3);
  const bool one_dtype = random.once_in(2);
  const Dtype dtype = random.one_of(kDtypes);
  const bool captured = random.once_in(3);
  const Shape shape = any_shape(random, scenario.mapping);
  const Word calls = random.between(1, scenario.world > 4 ? 8 : 14);
  for (Word call = 0; call < calls; ++call) {
    CallPlan plan{};
    plan.algorithm = algorithms[random.below(static_cast<Word>(algorithms.size()))];
    plan.dtype = one_dtype ? dtype : random.one_of(kDtypes);
    plan.elements = any_size(random, scenario.world, plan.dtype);
    plan.in_place = random.once_in(3);
    if (most_chunks(*plan.algorithm, scenario.world) > 1)
      plan.in_place = false;  // input and output are not of one size
    plan.dependent = dependent == 0 ? false : (dependent == 1 ? true : random.once_in(2));
    plan.captured = captured;
    const Shape of_call = any_shape(random, scenario.mapping);
    for (Shape& of_rank : plan.shape) {
      of_rank = shapes < 2 ? shape : (shapes < 4 ? of_call : any_shape(random, scenario.mapping));
    }
    scenario.calls.push_back(plan);
  }
}

void draw_trouble(Random& random, Scenario& scenario) {
  static constexpr Trouble kTroubles[] = {Trouble::kLate,       Trouble::kLate,      Trouble::kFrozen,
                                          Trouble::kFrozen,     Trouble::kKilled,    Trouble::kKilled,
                                          Trouble::kKilled,     Trouble::kKilled,    Trouble::kClosed,
                                          Trouble::kOtherDtype, Trouble::kOtherSize, Trouble::kKilled};
  scenario.trouble = random.below(5) < 3 ? Trouble::kNone : random.one_of(kTroubles);
  scenario.troubled_rank = random.below(scenario.world);
  scenario.troubled_call = random.below(static_cast<Word>(scenario.calls.size()));
  scenario.troubled_access = 1 + random.below(1u << random.between(0, 11));
  scenario.stores_lost = random.once_in(2);
}

// Two ranks that are a call apart may have different deadlines where the warm-up ends, and the one that is ahead then
// gives up long before its victim. That is as it is, and rare; here it would only hide other findings.
void one_deadline(Scenario& scenario) {
  if (scenario.settled != 0 || scenario.calls[0].captured) scenario.settled = kWarmupCalls;
}

// Models know neither failures nor cache lines.
void restrict_to_model(Scenario& scenario) {
  if (scenario.trouble != Trouble::kLate) scenario.trouble = Trouble::kNone;
}

// Once in the life of a channel, before the first call.
void restrict_to_greeting(Scenario& scenario) {
  scenario.calls.resize(1);
  scenario.troubled_call = 0;
  scenario.settled = 0;
  const bool other = scenario.trouble == Trouble::kOtherDtype || scenario.trouble == Trouble::kOtherSize;
  if (other) scenario.trouble = Trouble::kClosed;
}

Mood any_mood(Random& random) {
  static constexpr Word kEvent[] = {0, 4, 16, 48, 96};
  static constexpr Word kDelay[] = {0, 32, 128, 255};
  static constexpr Word kHold[] = {0, 32, 160};
  static constexpr Word kShuffle[] = {0, 64, 255};
  static constexpr Word kTear[] = {0, 64};
  return {random.one_of(kEvent), random.one_of(kDelay), random.one_of(kHold), random.one_of(kShuffle),
          random.one_of(kTear)};
}

const char* dtype_name(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? "float32" : (dtype == Dtype::kFloat16 ? "float16" : "bfloat16");
}

std::string trouble_told(const Scenario& scenario) {
  const std::string rank = "rank " + std::to_string(scenario.troubled_rank);
  const std::string when = " in call " + std::to_string(scenario.troubled_call);
  switch (scenario.trouble) {
    case Trouble::kNone: return "nothing goes wrong";
    case Trouble::kLate: return rank + " is late" + when;
    case Trouble::kFrozen: return rank + " stops for longer than the deadline" + when;
    case Trouble::kKilled: return rank + " dies" + when;
    case Trouble::kOtherDtype: return rank + " calls with another dtype" + when;
    case Trouble::kOtherSize: return rank + " calls with another size" + when;
    case Trouble::kClosed: return rank + " closes before call " + std::to_string(scenario.troubled_call);
  }
  return "";
}

}  // namespace

void share_gpu(Scenario& scenario) { scenario.multiprocessors = (scenario.world - 1) * kMostBlocks + 1; }

Scenario draw(std::uint64_t seed, const std::vector<const Entry*>& algorithms) {
  static constexpr Word kWorlds[] = {2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6, 7, 8};
  static constexpr Mapping kMappings[] = {Mapping::kStewards, Mapping::kStewards, Mapping::kShared, Mapping::kLines};
  static constexpr Word kSettled[] = {0, kWarmupCalls - 2, kWarmupCalls};
  Random random(seed);
  Scenario scenario{};
  const auto served = [&](const Entry* entry) { return entry->serves(scenario.world); };
  do {
    scenario.world = random.one_of(kWorlds);
  } while (std::none_of(algorithms.begin(), algorithms.end(), served));
  do {
    scenario.mapping = random.one_of(kMappings);
  } while (algorithms[0]->model && scenario.mapping == Mapping::kLines);
  scenario.stewards = random.between(1, 2);
  scenario.first_island = any_island(random, scenario.world);
  scenario.transport = algorithms[0]->transport;
  std::vector<const Entry*> serving;
  std::copy_if(algorithms.begin(), algorithms.end(), std::back_inserter(serving), served);
  draw_calls(random, scenario, serving);
  const Word calls = static_cast<Word>(scenario.calls.size());
  const Word start = random.below(3);
  scenario.first_call =
      start == 0 ? 0 : (start == 1 ? static_cast<Word>(random.next()) : 0u - random.between(1, calls));
  scenario.first_phase = random.below(kPhases);
  scenario.settled = random.one_of(kSettled);
  draw_trouble(random, scenario);
  if (scenario.gives_up()) one_deadline(scenario);
  if (algorithms[0]->model) restrict_to_model(scenario);
  if (algorithms[0]->collective == Collective::kGreeting) restrict_to_greeting(scenario);
  scenario.integers = scenario.trouble != Trouble::kNone || algorithms[0]->model || !random.once_in(4);
  for (const CallPlan& plan : scenario.calls) {
    if (chunks_in(*plan.algorithm, scenario.world) > 1) scenario.integers = true;  // no two ranks' outputs are alike
  }
  scenario.values = random.next();
  scenario.mood = any_mood(random);
  if (scenario.transport == Transport::kStaged) scenario.sum_copies = random.between(1, std::min(scenario.world, 4u));
  return scenario;
}

std::string Scenario::told() const {
  std::string told = std::to_string(world) + " ranks";
  if (mapping == Mapping::kStewards) told += ", " + std::to_string(stewards) + " stewards a block";
  if (transport == Transport::kStaged) told += ", staged, " + std::to_string(sum_copies) + " copies of sums";
  if (transport == Transport::kPull) told += ", pull";
  if (mapping == Mapping::kLines) told += ", cache lines";
  if (multiprocessors != 0) told += ", all on one GPU of " + std::to_string(multiprocessors) + " multiprocessors";
  told += ", epoch from " + std::to_string(first_call) + " in phase " + std::to_string(first_phase) + ", " +
          trouble_told(*this);
  for (std::size_t call = 0; call < calls.size(); ++call) {
    const CallPlan& plan = calls[call];
    told += "\n  call " + std::to_string(call) + ": " + plan.algorithm->name + ", " + std::to_string(plan.elements) +
            " x " + dtype_name(plan.dtype) + (plan.in_place ? ", in place" : "") +
            (plan.dependent ? ", dependent launch" : "") + ", lanes";
    for (Word rank = 0; rank < world; ++rank) {
      told += " " + std::to_string(plan.shape[rank].blocks) + "x" + std::to_string(plan.shape[rank].threads);
    }
  }
  return told;
}

}  // namespace pcie_allreduce::fabric
