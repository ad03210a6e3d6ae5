// What one schedule is about, apart from the adversary's decisions: ranks, lanes, calls, and what goes wrong outside of
// the protocol. Drawn from the seed; made smaller, field by field, when a failure is shrunk.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "fabric/scheduler.h"
#include "protocol/dispatch.h"

namespace pcie_allreduce::fabric {

struct Entry;  // of the table of algorithms

// How lanes share the work that is not packs, and what they move at a time.
enum class Mapping {
  kStewards,  // as the GPU's machine: the last lanes of a block move no data
  kShared,    // every lane does both
  kLines,     // as the CPU's machine: one lane a rank, a cache line at a time
};

enum class Trouble {
  kNone,
  kLate,    // a rank stops for less than the deadline
  kFrozen,  // ... for more
  kKilled,
  kOtherDtype,  // a rank calls with another dtype of as many bytes
  kOtherSize,
  kClosed,  // a rank makes fewer calls, and then closes
};

struct Shape {
  Word blocks;
  Word threads;  // that move data
};

struct CallPlan {
  const Entry* algorithm;
  Dtype dtype;
  Word elements;
  bool in_place;
  bool dependent;  // the grid may start while its predecessor ends
  bool captured;
  std::array<Shape, kMaxWorld> shape;  // any partition is valid, on every rank its own
};

struct Scenario {
  Word world;
  Mapping mapping;
  Word stewards;
  Word first_island;  // bit r: rank r
  Transport transport;
  Word sum_copies = 1;  // staged; rank r reads copy r modulo their number
  std::vector<CallPlan> calls;
  Word first_call;  // the epoch, near its wrap in part of the seeds
  Word first_phase;
  Word settled;
  bool integers;  // sums are exact; else any bits, and ranks are compared with each other
  std::uint64_t values;
  Trouble trouble;
  Word troubled_rank;
  Word troubled_call;
  Word troubled_access;  // of that rank, in that call
  bool stores_lost;      // what a killed rank had on its way never arrives
  Mood mood;
  Word multiprocessors = 0;  // of the GPU that all ranks share; 0: there is room for everything
  // What a planted fault may change of the machine.
  Word areas = 1;               // mailbox areas of a phase, one an algorithm
  bool boundary_drains = true;  // a launch boundary completes stores to the rank's own memory

  bool gives_up() const { return trouble != Trouble::kNone && trouble != Trouble::kLate; }
  std::string told() const;
};

constexpr Word kMostBlocks = 3;    // of a launch here; the GPU's machine has kMaxBlocks
constexpr Word kBlocksAtOnce = 2;  // on a multiprocessor
constexpr Word kStateLines = 4;    // of blocks that a launch may have, and one more

// All ranks on one GPU, on which there is a multiprocessor without a block while all but one wait for that one.
void share_gpu(Scenario& scenario);

Scenario draw(std::uint64_t seed, const std::vector<const Entry*>& algorithms);

constexpr Word element_bytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }
constexpr Word pack_elements(Dtype dtype) { return 16 / element_bytes(dtype); }

}  // namespace pcie_allreduce::fabric
