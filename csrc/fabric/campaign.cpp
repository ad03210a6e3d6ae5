#include "fabric/campaign.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

namespace pcie_allreduce::fabric {
namespace {

constexpr std::size_t kLinesShown = 240;
constexpr std::size_t kSeedsShown = 20;
constexpr std::uint64_t kGreetings = 20;  // one schedule in so many is about the greetings ...
constexpr std::uint64_t kOthers = 4;      // ... one about a staged channel, and one about a pull ...
constexpr std::uint64_t kSharing = 5;     // ... and in one all ranks share a GPU

std::vector<const Entry*> entries_of(const Campaign& campaign, std::uint64_t seed) {
  if (campaign.fault != nullptr && !campaign.fault->algorithms.empty()) return campaign.fault->algorithms;
  if (!campaign.algorithms.empty()) return campaign.algorithms;
  if (campaign.fault == nullptr && seed % kGreetings == 0) return {find_algorithm("greeting")};
  Transport transport = Transport::kPush;
  if (campaign.fault == nullptr && seed % kOthers == 1) transport = Transport::kStaged;
  if (campaign.fault == nullptr && seed % kOthers == 3) transport = Transport::kPull;
  std::vector<const Entry*> entries;
  for (const Entry& entry : algorithms()) {
    const bool mixed_in = entry.collective == Collective::kAllReduce ||
                          (campaign.fault == nullptr && entry.collective != Collective::kGreeting);
    if (mixed_in && entry.transport == transport) entries.push_back(&entry);
  }
  return entries;
}

Scenario scenario_of(const Campaign& campaign, std::uint64_t seed) {
  Scenario scenario = draw(seed, entries_of(campaign, seed));
  if (campaign.fault == nullptr && seed % kSharing == 2) share_gpu(scenario);
  if (campaign.fault != nullptr && campaign.fault->adjust != nullptr) campaign.fault->adjust(scenario);
  return scenario;
}

LaneMaker maker_of(const Campaign& campaign) { return campaign.fault != nullptr ? campaign.fault->maker : right_lane; }

std::string told(const Violation& violation) {
  return std::string(name_of(violation.breach)) + ": rank " + std::to_string(violation.rank) + ", call " +
         std::to_string(violation.call) + ": " + violation.told;
}

}  // namespace

Found run_all(const Campaign& campaign, bool stop_at_first) {
  Found found;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> end{campaign.schedules};
  const auto work = [&] {
    FiberPool fibers;
    std::uint64_t schedules = 0;
    for (std::uint64_t i = next++; i < end; i = next++) {
      const std::uint64_t seed = campaign.first_seed + i;
      const Outcome outcome = run_seed(scenario_of(campaign, seed), seed, fibers, maker_of(campaign));
      ++schedules;
      if (outcome.violation.breach == Breach::kNone) continue;
      const std::lock_guard lock(mutex);
      found.failures.push_back({seed, outcome.violation});
      if (stop_at_first) end = std::min<std::uint64_t>(end, i);  // the seeds before it are still run: the lowest counts
    }
    const std::lock_guard lock(mutex);
    found.schedules += schedules;
  };
  std::vector<std::thread> threads;
  const unsigned count = campaign.threads != 0 ? campaign.threads : std::max(1u, std::thread::hardware_concurrency());
  while (threads.size() < count) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  std::sort(found.failures.begin(), found.failures.end(),
            [](const Failure& a, const Failure& b) { return a.seed < b.seed; });
  return found;
}

Shortest shortest_of(const Campaign& campaign, std::uint64_t seed) {
  FiberPool fibers;
  const Scenario scenario = scenario_of(campaign, seed);
  const Outcome found = run_seed(scenario, seed, fibers, maker_of(campaign));
  return shrink(scenario, found, *entries_of(campaign, seed)[0], fibers, maker_of(campaign));
}

std::string size_of(const Shortest& shortest) {
  Word lanes = 0;
  for (const CallPlan& plan : shortest.scenario.calls) {
    for (Word rank = 0; rank < shortest.scenario.world; ++rank) {
      lanes = std::max(lanes, plan.shape[rank].blocks * plan.shape[rank].threads);
    }
  }
  const auto counted = [](std::size_t n, const char* what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
  };
  return counted(shortest.scenario.world, "rank") + ", " + counted(shortest.scenario.calls.size(), "call") + ", " +
         counted(lanes, "lane") + " a rank, " + counted(shortest.outcome.hostile.size(), "hostile decision") + ", " +
         counted(shortest.outcome.steps, "step");
}

void tell(const Campaign& campaign, const Failure& failure) {
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(failure.seed), told(failure.violation).c_str());
  const Shortest shortest = shortest_of(campaign, failure.seed);
  std::printf("shrunk to %s: %s\n%s\n", size_of(shortest).c_str(), told(shortest.outcome.violation).c_str(),
              shortest.scenario.told().c_str());
  const std::vector<std::string>& lines = shortest.outcome.timeline;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines.size() > kLinesShown && i == kLinesShown / 2) {
      std::printf("  ... %zu lines ...\n", lines.size() - kLinesShown);
      i = lines.size() - kLinesShown / 2;
    }
    std::printf("  %s\n", lines[i].c_str());
  }
  std::printf("again: make fabric SCHEDULES=1 SEED=%llu", static_cast<unsigned long long>(failure.seed));
  if (campaign.algorithms.size() == 1) std::printf(" ALGORITHM=%s", campaign.algorithms[0]->name);
  if (campaign.fault != nullptr) std::printf(" FAULT=%s", campaign.fault->name);
  std::printf("\n");
}

int search(const Campaign& campaign) {
  const Found found = run_all(campaign, false);
  std::map<std::string, std::size_t> kinds;
  for (const Failure& failure : found.failures) ++kinds[name_of(failure.violation.breach)];
  for (std::size_t i = 1; i < std::min(found.failures.size(), kSeedsShown); ++i) {
    const Failure& failure = found.failures[i];
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(failure.seed), told(failure.violation).c_str());
  }
  if (!found.failures.empty()) tell(campaign, found.failures[0]);
  for (const auto& [kind, count] : kinds) std::printf("%zu x %s\n", count, kind.c_str());
  std::printf("schedules=%llu violations=%zu\n", static_cast<unsigned long long>(found.schedules),
              found.failures.size());
  return found.failures.empty() ? 0 : 1;
}

}  // namespace pcie_allreduce::fabric
