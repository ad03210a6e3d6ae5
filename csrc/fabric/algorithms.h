// The table of algorithms: one joins by one line. An entry says what the checker must know of it; everything else is found
// out by running it.
#pragma once

#include <string>
#include <vector>

#include "fabric/lane.h"

namespace pcie_allreduce::fabric {

enum class Collective { kAllReduce, kReduceScatter, kAllGather };

struct Entry {
  const char* name;
  Algorithm id;
  Collective collective;
  bool (*serves)(Word world);
  void (*run)(Lane& lane, const Channel& channel, const Request& request, Mapping mapping);
  // Packs that the channel's rank sends to `reader` in one call, signature included. `unit`: packs that move at a time.
  Word (*link_packs)(const Channel& channel, const Request& request, Word unit, Word reader);
  // What stands in a pack of a phase of the mailbox of the channel's rank.
  std::string (*name_pack)(const Channel& channel, const Request& request, Word pack);
};

const std::vector<Entry>& algorithms();
const Entry* find_algorithm(const std::string& name);

Word unit_packs(Mapping mapping);

// The elements [first, end) that `rank` owns, where a collective has owners.
Range shard(Word world, Word rank, Word elements);

}  // namespace pcie_allreduce::fabric
