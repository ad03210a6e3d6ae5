// Many schedules, on all cores: seeds first_seed, first_seed + 1, ... The lowest that fails is shrunk and told.
#pragma once

#include "fabric/faults.h"
#include "fabric/shrink.h"

namespace pcie_allreduce::fabric {

struct Campaign {
  std::uint64_t schedules = 20000;
  std::uint64_t first_seed = 1;
  std::vector<const Entry*> algorithms;  // empty: all, in turn on one channel
  const PlantedFault* fault = nullptr;
  unsigned threads = 0;  // 0: one a core
};

struct Failure {
  std::uint64_t seed;
  Violation violation;
};

struct Found {
  std::uint64_t schedules = 0;
  std::vector<Failure> failures;  // by seed
};

Found run_all(const Campaign& campaign, bool stop_at_first);
Shortest shortest_of(const Campaign& campaign, std::uint64_t seed);
std::string size_of(const Shortest& shortest);
void tell(const Campaign& campaign, const Failure& failure);

// Both print, and return the exit status.
int search(const Campaign& campaign);    // ends with "schedules=n violations=v"
int find_all(const Campaign& campaign);  // every planted fault, within so many schedules each, as a table

}  // namespace pcie_allreduce::fabric
