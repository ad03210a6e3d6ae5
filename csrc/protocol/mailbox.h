// One rank's slab, the only memory that others write for it. Everything in it is addressed by arithmetic that all ranks
// share, so this file is the contract between them; kLayoutVersion changes whenever a byte of it moves.
//
//   byte 0                8192             12288                  + 16 * area_packs      + 32 * area_packs
//   +---------------------+----------------+----------------------+----------------------+----------------------+
//   | control             | greeting       | mailbox, phase 0     | phase 1              | phase 2              |
//   +---------------------+----------------+----------------------+----------------------+----------------------+
//     block states, abort   8 sources x      each laid out anew by every call:
//     words, election       8 packs          signatures (one line), then the algorithm's slots, without a gap that the
//                                            algorithm does not account for: the packs a call used are [0, used)
//
// A staged channel has the same in host memory, with four phases, and a rank's slab is written by the rank itself: one
// copy serves all readers. Its control page holds abort words only; what a rank keeps from call to call stays near it.
//
// Of a pull channel's mailbox only the line of signatures is used. Behind it, apart from memory that is polled for
// EMPTY, lies what peers read, twice; a call takes the copy of its parity:
//
//   byte 12288              12800                16896                    + 16 * copy_packs        + 32 * copy_packs
//   +-----------------------+--------------------+------------------------+------------------------+
//   | mailbox, three lines  | flags: 128 blocks  | staging, even calls    | staging, odd calls     |
//   |                       | x 8 sources        |                        |                        |
//   +-----------------------+--------------------+------------------------+------------------------+
//
// Because a call's packs are one range from the start of its phase, whoever re-arms a phase needs one number, whatever
// algorithm or size used it: invariant 4 becomes a single record per phase.
#pragma once

#include <cstddef>

#include "protocol/word.h"

namespace pcie_allreduce {

constexpr Word kLayoutVersion = 4;
constexpr int kMaxWorld = 8;
constexpr Word kPhases = 3;
constexpr Word kStagedPhases = 4;
constexpr Word kMaxBlocks = 128;
constexpr Word kLinePacks = 8;  // a 128-byte line: what a warp store should fill, and where slots begin

// What one block keeps from call to call. Read and written by its own block alone; a launch with fewer blocks has its
// first block write the lines of those that did not run, so the grid may change from call to call.
struct alignas(32) BlockState {
  Word call;   // collectives completed; wraps, and is compared and sent, never reduced modulo kPhases:
  Word phase;  // 2^32 mod 3 = 1, so "call % 3" would use one phase twice in a row at the wrap
  Word used[kPhases];
  Word settled;      // calls until the short deadline holds; saturates
  Word used_fourth;  // of a staged channel
  Word unused;
};
static_assert(sizeof(BlockState) == 32, "one 32-byte sector, two vector loads");

// How long this rank has waited for a peer to begin its calls. One writer; the host reads it while calls run.
struct alignas(16) PeerWait {
  std::uint64_t total_ns;
  Word calls;
  Word worst_us;
  PAR_INLINE void add(std::uint64_t waited_ns) {
    total_ns += waited_ns;
    ++calls;
    const Word us = waited_ns / 1000 > 0xFFFF'FFFFu ? 0xFFFF'FFFFu : static_cast<Word>(waited_ns / 1000);
    worst_us = us > worst_us ? us : worst_us;
  }
};
static_assert(sizeof(PeerWait) == 16, "one vector load");

struct alignas(128) Control {
  BlockState block[kMaxBlocks];
  Word abort[kMaxWorld];  // word s: written by rank s alone; this rank's own word is its failure mark
  Word unused[24];
  Word elected;  // atomic in the rank's own memory: the first block to fail writes the record
  PeerWait waited[kMaxWorld];
  Word agreed[kMaxWorld];  // of a staged channel, word s: 1 + the last call in which rank s made the same call
};
static_assert(sizeof(Control) <= 8192, "control fits its pages");
static_assert(offsetof(Control, abort) % 32 == 0, "the abort words are one sector, two vector loads");
static_assert((offsetof(Control, elected) & ~127u) != (offsetof(Control, abort) & ~127u),
              "an atomic does not share a line with words that peers write");

constexpr std::size_t kGreetingOffset = 8192;
constexpr Word kGreetingPacks = 8;  // per source
constexpr std::size_t kMailboxOffset = 12288;
static_assert(kGreetingOffset + kMaxWorld * kGreetingPacks * sizeof(Pack) <= kMailboxOffset, "greetings fit");

// How data comes to its readers.
enum class Transport : Word {
  kPush = 0,    // a rank writes it into its peers' slabs
  kStaged = 1,  // ... into its own, which lies in host memory
  kPull = 2,    // ... into its own, and raises flags in its peers'
};

constexpr std::size_t kFlagsOffset = 12800;
constexpr std::size_t kStagingOffset = 16896;
static_assert(kMailboxOffset + kPhases * kLinePacks * sizeof(Pack) <= kFlagsOffset, "the signatures of a pull fit");
static_assert(kFlagsOffset + kMaxBlocks * kMaxWorld * sizeof(Word) <= kStagingOffset, "its flags fit");
static_assert(kFlagsOffset % 128 == 0 && kStagingOffset % 128 == 0, "both begin with a line");

// area_packs: of a phase; of a staging copy where slabs are read.
constexpr std::size_t slab_bytes(Word area_packs, Transport transport = Transport::kPush) {
  const std::size_t area = area_packs * sizeof(Pack);
  if (transport == Transport::kPull) return kStagingOffset + 2 * area;
  return kMailboxOffset + (transport == Transport::kStaged ? kStagedPhases : kPhases) * area;
}

// Up to where a slab is filled with EMPTY before the first call, from the greeting on; what follows is zero.
constexpr std::size_t polled_bytes(Word area_packs, Transport transport) {
  return transport == Transport::kPull ? kFlagsOffset : slab_bytes(area_packs, transport);
}

PAR_INLINE constexpr Word whole_lines(Word packs) { return (packs + kLinePacks - 1) / kLinePacks * kLinePacks; }

// Where rank `source` stands among the world - 1 sources of rank `reader`: nobody sends to itself.
PAR_INLINE constexpr Word source_index(Word source, Word reader) { return source < reader ? source : source - 1; }
PAR_INLINE constexpr Word source_of(Word index, Word reader) { return index < reader ? index : index + 1; }
// The hop-th after `first` in a ring: everybody sends to another first.
PAR_INLINE constexpr Word after(Word first, Word hop, Word ring) {
  return first + hop < ring ? first + hop : first + hop - ring;
}

// A call's packs inside its phase when everyone sends everything to everyone.
struct OneShotLayout {
  Word world;
  Word stride;  // packs from one source's slot to the next: whole lines, so that warps store whole lines

  PAR_INLINE constexpr OneShotLayout(Word world_size, Word packs) : world(world_size), stride(whole_lines(packs)) {}
  PAR_INLINE constexpr Word signature(Word source, Word reader) const { return source_index(source, reader); }
  PAR_INLINE constexpr Word slot(Word source, Word reader) const {
    return kLinePacks + source_index(source, reader) * stride;
  }
  PAR_INLINE constexpr Word used() const { return kLinePacks + (world - 1) * stride; }
};

// Shards to their owners, then the owners' sums to everyone. Shards are whole lines; the last ones may be short or
// empty.
struct TwoShotLayout {
  Word world;
  Word shard;  // packs

  PAR_INLINE constexpr TwoShotLayout(Word world_size, Word packs)
      : world(world_size), shard(whole_lines((packs + world_size - 1) / world_size)) {}
  PAR_INLINE constexpr Word scatter(Word source, Word owner) const {
    return kLinePacks + source_index(source, owner) * shard;
  }
  PAR_INLINE constexpr Word gather(Word owner, Word reader) const {
    return kLinePacks + (world - 1 + source_index(owner, reader)) * shard;
  }
  PAR_INLINE constexpr Word used() const { return kLinePacks + 2 * (world - 1) * shard; }
};

// Two islands of half the ranks: shards to their owners inside the island, float32 partial sums across to the owner's
// partner, sums to everyone inside the island. Indices are those inside an island.
struct IslandLayout {
  Word half;    // ranks in an island
  Word shard;   // packs
  Word spread;  // packs of float32 that a pack becomes: 1 or 2

  PAR_INLINE constexpr IslandLayout(Word world_size, Word packs, Word float_packs)
      : half(world_size / 2), shard(whole_lines((packs + half - 1) / half)), spread(float_packs) {}
  PAR_INLINE constexpr Word scatter(Word source, Word owner) const {
    return kLinePacks + source_index(source, owner) * shard;
  }
  PAR_INLINE constexpr Word cross() const { return kLinePacks + (half - 1) * shard; }
  PAR_INLINE constexpr Word gather(Word owner, Word reader) const {
    return cross() + (spread + source_index(owner, reader)) * shard;
  }
  PAR_INLINE constexpr Word used() const { return cross() + (spread + half - 1) * shard; }
};

// What a rank writes into its own slab for everyone to read: its payload by shards, and, in two-shot, the sums of its
// own shard. One-shot has one shard. Staged, a line for each reader stands first, with the signature (a pull sends it):
// when several ranks of one GPU poll a line of host memory, they are served one after the other.
constexpr Word kSignaturePacks = kMaxWorld * kLinePacks;
struct StagedLayout {
  Word shards;
  Word copies;  // of the sums: for that very reason
  Word shard;   // packs

  PAR_INLINE constexpr StagedLayout(Word shard_count, Word packs, Word sum_copies = 1)
      : shards(shard_count), copies(sum_copies), shard(whole_lines((packs + shard_count - 1) / shard_count)) {}
  PAR_INLINE constexpr Word payload(Word owner) const { return kSignaturePacks + owner * shard; }
  PAR_INLINE constexpr Word sums(Word copy) const { return payload(shards + copy); }
  PAR_INLINE constexpr Word used() const { return shards == 1 ? payload(1) : sums(copies); }
};

static_assert(kMaxWorld - 1 <= kLinePacks, "one signature a source, all in the first line");
static_assert(OneShotLayout(8, 2688).used() == 8 + 7 * 2688, "43,008 bytes over 8 ranks");
static_assert(OneShotLayout(2, 1).slot(1, 0) == 8, "the reader's own slot does not exist");
static_assert(TwoShotLayout(8, 2688).shard == 336 && TwoShotLayout(8, 2688).used() == 8 + 14 * 336, "75 KB a rank");
static_assert(TwoShotLayout(8, 1).shard == kLinePacks, "one pack: the other shards are empty, not shorter");
static_assert(IslandLayout(8, 2688, 2).used() == 8 + 8 * 672, "2 x 4 ranks, 43,008 bytes of a 16-bit type");

PAR_INLINE Control* control_of(char* slab) { return reinterpret_cast<Control*>(slab); }
PAR_INLINE Pack* greeting_of(char* slab) { return reinterpret_cast<Pack*>(slab + kGreetingOffset); }
PAR_INLINE Pack* area_of(char* slab, Word phase, Word area_packs) {
  return reinterpret_cast<Pack*>(slab + kMailboxOffset) + std::size_t{phase} * area_packs;
}
PAR_INLINE Pack* staging_of(char* slab, Word call, Word copy_packs) {
  return reinterpret_cast<Pack*>(slab + kStagingOffset) + std::size_t{call & 1u} * copy_packs;
}
// A block's flags of all sources are one sector.
PAR_INLINE Word* flag_of(char* slab, Word block, Word source) {
  return reinterpret_cast<Word*>(slab + kFlagsOffset) + block * kMaxWorld + source;
}
// Never "==": a peer may be a call ahead, and the count wraps.
PAR_INLINE constexpr bool reached(Word flag, Word count) { return static_cast<std::int32_t>(flag - count) >= 0; }

PAR_INLINE constexpr Word phase_after(Word phase) { return phase + 1 == kPhases ? 0 : phase + 1; }
PAR_INLINE constexpr Word staged_phase_after(Word phase) { return (phase + 1) % kStagedPhases; }
PAR_INLINE constexpr Word two_phases_before(Word phase) { return (phase + 2) % kStagedPhases; }  // of four
PAR_INLINE constexpr Word phase_before(Word phase) { return phase == 0 ? kPhases - 1 : phase - 1; }

}  // namespace pcie_allreduce
