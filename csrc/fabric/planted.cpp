#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "fabric/campaign.h"

namespace pcie_allreduce::fabric {
namespace {

constexpr std::uint64_t kControls = 1000;  // schedules of each

struct Row {
  Found found;
  std::string shortest;
};

// Faults side by side, each on one thread: shrinking is a chain of single runs.
std::vector<Row> rows_of(const Campaign& campaign, const std::vector<PlantedFault>& faults) {
  std::vector<Row> rows(faults.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < faults.size(); i = next++) {
      Campaign planted = campaign;
      planted.fault = &faults[i];
      planted.threads = 1;
      rows[i].found = run_all(planted, true);
      if (!rows[i].found.failures.empty()) {
        rows[i].shortest = size_of(shortest_of(planted, rows[i].found.failures[0].seed));
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = std::max(1u, std::thread::hardware_concurrency()); t > 0; --t) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return rows;
}

}  // namespace

int find_all(const Campaign& campaign) {
  const std::vector<Row> rows = rows_of(campaign, planted_faults());
  std::size_t wrong = 0;
  std::uint64_t schedules = 0;
  std::printf("| fault | seeds until found | found as | shortest schedule |\n|---|---|---|---|\n");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Found& found = rows[i].found;
    schedules += found.schedules;
    wrong += found.failures.empty();
    std::printf("| `%s`: %s | ", planted_faults()[i].name, planted_faults()[i].what);
    if (found.failures.empty()) {
      std::printf("not within %llu | | |\n", static_cast<unsigned long long>(campaign.schedules));
    } else {
      std::printf("%llu | %s | %s |\n",
                  static_cast<unsigned long long>(found.failures[0].seed - campaign.first_seed + 1),
                  name_of(found.failures[0].violation.breach), rows[i].shortest.c_str());
    }
  }
  for (const PlantedFault& control : controls()) {
    Campaign right = campaign;
    right.fault = &control;
    right.schedules = std::min(campaign.schedules, kControls);
    const Found found = run_all(right, true);
    schedules += found.schedules;
    if (found.failures.empty()) continue;
    ++wrong;
    std::printf("%s is found where it is not:\n", control.name);
    tell(right, found.failures[0]);
  }
  std::printf("schedules=%llu violations=%zu\n", static_cast<unsigned long long>(schedules), wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace pcie_allreduce::fabric
