// What happened in one schedule, kept only when a failure is shown, and told so that a person can follow it.
#pragma once

#include <string>
#include <vector>

#include "fabric/memory.h"

namespace pcie_allreduce::fabric {

enum class Happened {
  kStarts,
  kReads,     // the state of its block: call, phase, stale, failed
  kPuts,      // value[4], `note`: bit w is set where word w is still on its way
  kArms,      // note as above
  kStores,    // value[0], note 1: on its way
  kArrives,   // value[0], late
  kLooks,     // value[4] and their origins
  kWrites,    // value[4], word: the pack's number in the output
  kMeets,     // the block's barrier; note: a lane of it has failed
  kEnds,      // writes the state
  kAccuses,   // note: reason, value[0]: missing
  kStarves,   // note: until
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

// Names the word of a mailbox: "phase 1, data of rank 0, pack 3", as far as the layouts of the algorithms tell.
using Namer = std::string (*)(const void* about, Word word);

class Timeline {
 public:
  std::size_t add(const Event& event) {
    events_.push_back(event);
    return events_.size() - 1;
  }
  Event& at(std::size_t which) { return events_[which]; }
  // One line an event; looks that saw nothing new are left out, and of a long story the beginning.
  std::string told(Namer namer, const void* about, std::size_t lines) const;

 private:
  std::vector<Event> events_;
};

}  // namespace pcie_allreduce::fabric
