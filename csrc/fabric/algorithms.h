// The table of algorithms: one joins by one line. An entry says what the checker must know of it; everything else is
// found out by running it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fabric/lane.h"

namespace pcie_allreduce::fabric {

enum class Collective { kAllReduce, kReduceScatter, kAllGather, kGreeting };

struct Entry {
  const char* name;
  Algorithm id;
  Collective collective;
  bool (*serves)(Word world);
  std::function<void(Lane& lane, const Channel& channel, const Request& request, Mapping mapping)> run;
  // Packs that the channel's rank stores into the slab of `reader` in one call, its own included, where it is not only
  // to re-arm; signature included. `unit`: packs that move at a time.
  std::function<Word(const Channel& channel, const Request& request, Word unit, Word reader)> link_packs;
  // What stands in a pack of a phase of the mailbox of the channel's rank.
  std::string (*name_pack)(const Channel& channel, const Request& request, Word pack);
  bool model = false;  // not an algorithm of the package: no signatures, no troubles, one launch shape for all ranks
  Transport transport = Transport::kPush;  // of the channels that it serves
  // ... that it reads in the slab of `source`.
  Word (*read_packs)(const Channel& channel, const Request& request, Word unit, Word source) = nullptr;
  // Packs that its layout is made for, where it may be more than the payload's.
  Word (*laid_out)(const Request& request, Word world) = nullptr;
};

const std::vector<Entry>& algorithms();
const Entry* find_algorithm(const std::string& name);

Word unit_packs(Mapping mapping);
Word used_packs(const Request& request, Word world, Transport transport, Word sum_copies);  // of a phase, or a copy

// How many chunks the caller's input and output have: one, but of reduce-scatter's input and all-gather's output, which
// have one for each rank. A model's have what is left of the whole.
Word chunks_in(const Entry& entry, Word world);
Word chunks_out(const Entry& entry, Word world);
Word most_chunks(const Entry& entry, Word world);  // of the two

// The packs [first, end) that `rank` owns in the models of reduce-scatter and all-gather; the last shards may be empty.
Range pack_shard(Word world, Word rank, Word packs);

}  // namespace pcie_allreduce::fabric
