// The bytes of a mailbox: what one rank writes is where the other one reads, nothing overlaps, slots are whole lines,
// and the packs of a call are exactly [0, used): the re-arming rests on that.
#include <vector>

#include "expect.h"
#include "protocol/dispatch.h"

namespace pcie_allreduce::test {
namespace {

constexpr Word kSizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 448, 2688};

// Marks slots in one mailbox phase; every pack behind the signatures must be marked once.
class Map {
 public:
  Map(const char* name, Word world, Word packs, Word used) : name_(name), world_(world), packs_(packs), marks_(used) {
    expect(used % kLinePacks == 0, "%s, %u ranks, %u packs: %u used packs are not whole lines", name, world, packs,
           used);
  }
  void mark(Word first, Word count) {
    expect(first % kLinePacks == 0, "%s, %u ranks, %u packs: a slot begins at %u, within a line", name_, world_, packs_,
           first);
    expect(first >= kLinePacks && first + count <= marks_.size(),
           "%s, %u ranks, %u packs: slot [%u, %u) leaves [8, %zu)", name_, world_, packs_, first, first + count,
           marks_.size());
    for (Word pack = first; pack < first + count && pack < marks_.size(); ++pack) ++marks_[pack];
  }
  ~Map() {
    for (std::size_t pack = kLinePacks; pack < marks_.size(); ++pack) {
      expect(marks_[pack] == 1, "%s, %u ranks, %u packs: pack %zu lies in %u slots", name_, world_, packs_, pack,
             marks_[pack]);
    }
  }

 private:
  const char* name_;
  Word world_, packs_;
  std::vector<Word> marks_;
};

void one_shot(Word world, Word packs) {
  const OneShotLayout layout(world, packs);
  expect(layout.stride >= packs, "one-shot: a slot of %u packs must hold %u", layout.stride, packs);
  for (Word reader = 0; reader < world; ++reader) {
    Map map("one-shot", world, packs, layout.used());
    for (Word source = 0; source < world; ++source) {
      if (source != reader) map.mark(layout.slot(source, reader), layout.stride);
    }
  }
}

void two_shot(Word world, Word packs) {
  const TwoShotLayout layout(world, packs);
  expect(layout.shard * world >= packs, "two-shot: %u shards of %u packs must hold %u", world, layout.shard, packs);
  for (Word reader = 0; reader < world; ++reader) {
    Map map("two-shot", world, packs, layout.used());
    for (Word source = 0; source < world; ++source) {
      if (source == reader) continue;
      map.mark(layout.scatter(source, reader), layout.shard);
      map.mark(layout.gather(source, reader), layout.shard);
    }
  }
}

void island(Word world, Word packs, Word spread) {
  const IslandLayout layout(world, packs, spread);
  expect(layout.shard * world / 2 >= packs, "island: %u shards of %u packs must hold %u", world / 2, layout.shard,
         packs);
  for (Word reader = 0; reader < world / 2; ++reader) {
    Map map("island", world, packs, layout.used());
    map.mark(layout.cross(), spread * layout.shard);
    for (Word source = 0; source < world / 2; ++source) {
      if (source == reader) continue;
      map.mark(layout.scatter(source, reader), layout.shard);
      map.mark(layout.gather(source, reader), layout.shard);
    }
  }
}

void sources(Word world) {
  for (Word reader = 0; reader < world; ++reader) {
    Word next = 0;
    for (Word source = 0; source < world; ++source) {
      if (source == reader) continue;
      const Word index = source_index(source, reader);
      expect(index == next++ && source_of(index, reader) == source, "source %u of rank %u has index %u", source, reader,
             index);
    }
  }
}

// Every split into two halves: partners name each other, mates agree on their places.
void islands(Word world) {
  for (Word first = 0; first < 1u << world; ++first) {
    if (static_cast<Word>(__builtin_popcount(first)) != world / 2) continue;
    for (Word rank = 0; rank < world; ++rank) {
      const Islands mine = islands_of(first, world, rank);
      const Islands partners = islands_of(first, world, mine.partner);
      expect(mine.mates[mine.place] == rank, "islands %x: rank %u must be at its own place", first, rank);
      expect(partners.partner == rank && partners.place == mine.place,
             "islands %x: rank %u and its partner %u must agree", first, rank, mine.partner);
      for (Word place = 0; place < world / 2; ++place) {
        expect((first >> mine.mates[place] & 1u) == (first >> rank & 1u),
               "islands %x: rank %u must be a mate of rank %u", first, mine.mates[place], rank);
      }
    }
  }
}

void phases_turn() {
  for (Word phase = 0; phase < kPhases; ++phase) {
    expect(phase_before(phase_after(phase)) == phase, "the phase before the one after %u", phase);
    expect(phase_after(phase_after(phase)) == phase_before(phase), "three phases: two after %u is the one before",
           phase);
  }
}

void a_units_padding_fits() {
  for (Word bytes = 1; bytes < 300; ++bytes) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kIsland}) {
      const Word used = packs_used(algorithm, Dtype::kBFloat16, 4, bytes);
      expect(used % kLinePacks == 0 && used > kLinePacks, "%u bytes use %u packs, which must be whole lines", bytes,
             used);
    }
  }
}

}  // namespace
}  // namespace pcie_allreduce::test

int main() {
  using namespace pcie_allreduce::test;
  for (pcie_allreduce::Word world = 2; world <= 8; ++world) {
    sources(world);
    for (const pcie_allreduce::Word packs : kSizes) {
      one_shot(world, packs);
      two_shot(world, packs);
      if (world >= 4 && world % 2 == 0) {
        island(world, packs, 1);
        island(world, packs, 2);
      }
    }
    if (world % 2 == 0) islands(world);
  }
  phases_turn();
  a_units_padding_fits();
  return result();
}
