// What every lane of every algorithm is given: a plain struct, so that a kernel takes it as its one argument and a CUDA
// graph may freeze it. Whatever changes from call to call lies in the rank's BlockState instead.
#pragma once

#include <stdexcept>
#include <string>

#include "protocol/wait.h"

namespace pcie_allreduce {

// Two groups of equally many ranks. A place is an index inside an island, in the order of ranks.
struct Islands {
  Word mates[kMaxWorld / 2];  // ranks of this rank's island, by place
  Word place;                 // this rank's own
  Word partner;               // the rank of the other island at the same place
};

// `first`: bit r for each rank r of either island, world / 2 of them.
inline Islands islands_of(Word first, Word world, Word rank) {
  const Word own = (first >> rank & 1u) != 0 ? first : ~first & ((1u << world) - 1u);
  Islands islands{};
  Word places[2] = {0, 0};
  Word by_place[2][kMaxWorld] = {};
  for (Word r = 0; r < world; ++r) {
    const int other = (own >> r & 1u) != 0 ? 0 : 1;
    if (r == rank) islands.place = places[0];
    by_place[other][places[other]++] = r;
  }
  for (Word place = 0; place < world / 2; ++place) islands.mates[place] = by_place[0][place];
  islands.partner = by_place[1][islands.place];
  return islands;
}

struct Channel {
  char* slab[kMaxWorld];  // every rank's slab as this rank sees it; [rank] is its own
  Control* state;         // what this rank alone keeps: in its own slab, unless that is staged
  FaultRecord* record;
  Word rank;
  Word world;
  Word area_packs;
  Word copy_packs;  // of a staging copy of a pull, whose mailbox holds signatures alone
  Islands islands;
  Word sum_copies = 1;  // staged: of an owner's sums, as many as there are ranks on one GPU, the same on all ranks;
  Word sum_copy = 0;    // and which of them this rank reads
  std::uint64_t timeout_ns;
  std::uint64_t warmup_timeout_ns;
  Transport transport;

  PAR_INLINE bool staged() const { return transport == Transport::kStaged; }
  // Packs that a call may use. After the transport.
  Word room() const { return transport == Transport::kPull ? copy_packs : area_packs; }
  void make_room(Word packs) {
    area_packs = transport == Transport::kPull ? kLinePacks : packs;
    copy_packs = packs;
  }
};

inline void set_copies(Channel& channel, Word copies, Word own) {
  if (copies == 0 || copies > channel.world || own >= copies) {
    throw std::invalid_argument("copy " + std::to_string(own) + " of " + std::to_string(copies) + " for " +
                                std::to_string(channel.world) + " ranks");
  }
  channel.sum_copies = copies;
  channel.sum_copy = own;
}

// Where this rank finds the abort word of a peer, or its own failure mark.
PAR_INLINE Word* abort_word_of(const Channel& channel, Word peer) {
  return (peer == channel.rank ? channel.state : control_of(channel.slab[channel.rank]))->abort + peer;
}
// Where the signature of a source stands: in the reader's mailbox, or, staged, in the reader's line of the source's
// slab.
PAR_INLINE const Pack* announcement(bool staged, const Channel& channel, Word phase, Word index) {
  if (staged) {
    return area_of(channel.slab[source_of(index, channel.rank)], phase, channel.area_packs) + channel.rank * kLinePacks;
  }
  return area_of(channel.slab[channel.rank], phase, channel.area_packs) + index;
}

enum class Dtype : Word { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

PAR_INLINE constexpr Word signature_kind(Algorithm algorithm, Dtype dtype) {
  return (kLayoutVersion << 16) | (static_cast<Word>(algorithm) << 8) | static_cast<Word>(dtype);
}
PAR_INLINE constexpr Algorithm kind_algorithm(Word kind) { return static_cast<Algorithm>((kind >> 8) & 0xFFu); }
PAR_INLINE constexpr Dtype kind_dtype(Word kind) { return static_cast<Dtype>(kind & 0xFFu); }

struct Request {
  const void* in;
  void* out;
  Word bytes;          // of the payload, or of one rank's chunk of it (protocol/chunks.h)
  Word kind;           // of the signature
  bool captured;       // it runs as part of a graph replay: the warm-up is over
  Word row = kNoRows;  // elements of a row that is normalised; of a pull by GPUs, blocks and threads (blocks << 16)
  // In whole units, the machine's step: the padding is zero, is sent, and is awaited like everything else.
  template <class Unit = Pack>
  PAR_INLINE Word units() const {
    return (bytes + sizeof(Unit) - 1) / sizeof(Unit);
  }
};

// The step of a lane that has one unit at most: behind every end, so that the compiler sees that there is no loop.
struct Never {};
PAR_INLINE Word operator+(Word, Never) { return ~0u; }
PAR_INLINE Word& operator+=(Word& at, Never) { return at = ~0u; }

// One lane's part of [0, end).
template <class Step>
struct Part {
  Word first;
  Word end;
  Step step;
};
using Range = Part<Word>;

// What a lane reads at the start of a call, before it may store anything.
struct Call {
  Word number;
  Word phase;
  Word stale;  // packs that the call to re-arm used
  bool failed;
};

}  // namespace pcie_allreduce
