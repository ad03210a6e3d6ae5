// What happened in one schedule, kept only when a failure is shown, and told so that a person can follow it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fabric/memory.h"

namespace pcie_allreduce::fabric {

enum class Happened {
  kReads,    // the state of its block: call, phase, stale, failed
  kPuts,     // value[4], `note`: bit w is set where word w is still on its way
  kArms,     // note as above
  kStores,   // value[0], note 1: on its way
  kArrives,  // value[0], late
  kLooks,    // value[4] and their origins
  kWrites,   // value[4], word: the pack's number in the output
  kMeets,    // the block's barrier; note: a lane of it has failed
  kEnds,     // writes the state
  kAccuses,  // note: reason, value[0]: missing
  kStarves,  // note: until
  kFreezes,
  kDies,
  kCompletes,
  kFences,
  kCloses,
};

struct Event {
  std::uint64_t time = 0;
  LaneId lane{};
  Happened what{};
  Word word = 0;
  Word value[4] = {};
  LaneId origin[4] = {};
  std::uint64_t note = 0;
};

class Timeline {
 public:
  void add(const Event& event) { events_.push_back(event); }
  // Told by `name`, which says what stands at a word of memory. A lane that looks again and sees the same is left out.
  std::vector<std::string> told(const std::function<std::string(Word, Word call)>& name) const;

 private:
  std::vector<Event> events_;
};

std::string name_of(const LaneId& lane);

}  // namespace pcie_allreduce::fabric
