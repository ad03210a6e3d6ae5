#include "fabric/memory.h"

#include <algorithm>

namespace pcie_allreduce::fabric {
namespace {

constexpr std::size_t kAlignment = 128;

}  // namespace

Memory::Memory(Word world, Word area_packs, Transport transport, Watcher& watcher)
    : staged_(transport == Transport::kStaged),
      world_(world),
      slab_words_(static_cast<Word>(slab_bytes(area_packs, transport) / sizeof(Word))),
      state_words_(staged_ ? sizeof(Control) / sizeof(Word) : 0),
      watcher_(watcher) {
  const Word alignment = kAlignment / sizeof(Word);
  slab_words_ = (slab_words_ + alignment - 1) / alignment * alignment;
  rank_words_ = slab_words_ + state_words_ + sizeof(FaultRecord) / sizeof(Word) + kMaxWorld * kGreetingPacks;
  size_ = std::size_t{world} * rank_words_;
  storage_.assign(size_ + alignment, 0);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  words_ = reinterpret_cast<Word*>((address + kAlignment - 1) / kAlignment * kAlignment);
  for (Word rank = 0; rank < world; ++rank) {
    Word* slab = words_ + rank * rank_words_;
    std::fill(slab + kGreetingOffset / sizeof(Word), slab + polled_bytes(area_packs, transport) / sizeof(Word), kEmpty);
  }
  origin_.assign(size_, kFill);
  chain_.assign(size_, kNone);
}

Word Memory::index(const void* address) const {
  const std::ptrdiff_t word = static_cast<const Word*>(address) - words_;
  if (word < 0 || static_cast<std::size_t>(word) >= size_) {
    throw std::out_of_range("an access outside of all mailboxes, " + std::to_string(word) + " words from the first");
  }
  return static_cast<Word>(word);
}

Word Memory::load(LaneId lane, Word word) const {
  Word value = words_[word];
  for (std::uint32_t s = chain_[word]; s != kNone; s = stores_[s].next) {
    if (stores_[s].lane == lane) value = stores_[s].value;
  }
  return value;
}

bool Memory::store(LaneId lane, Word word, Word value, bool at_once, bool held) {
  if (at_once && first_of(lane.rank, word) == kNone) {
    words_[word] = value;
    origin_[word] = lane;
    watcher_.arrived(word, false);
    return true;
  }
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::uint32_t>(stores_.size()));
    stores_.emplace_back();
  }
  const std::uint32_t s = unused_.back();
  unused_.pop_back();
  stores_[s] = {word, value, lane, held, false, kNone, static_cast<std::uint32_t>(flying_.size())};
  flying_.push_back(s);
  std::uint32_t* link = &chain_[word];
  while (*link != kNone) link = &stores_[*link].next;
  *link = s;
  return false;
}

Word Memory::exchange(LaneId lane, Word word, Word value) {
  while (first_of(lane.rank, word) != kNone) apply(first_of(lane.rank, word));
  const Word before = words_[word];
  store(lane, word, value, true, false);
  return before;
}

std::uint32_t Memory::first_of(Word rank, Word word) const {
  std::uint32_t s = chain_[word];
  while (s != kNone && stores_[s].lane.rank != rank) s = stores_[s].next;
  return s;
}

void Memory::remove(std::uint32_t s) {
  std::uint32_t* link = &chain_[stores_[s].word];
  while (*link != s) link = &stores_[*link].next;
  *link = stores_[s].next;
  const std::uint32_t last = flying_.back();
  flying_[stores_[s].position] = last;
  stores_[last].position = stores_[s].position;
  flying_.pop_back();
  stores_[s].position = kNone;
  unused_.push_back(s);
}

void Memory::apply(std::uint32_t s) {
  const Store store = stores_[s];
  remove(s);
  words_[store.word] = store.value;
  origin_[store.word] = store.lane;
  watcher_.arrived(store.word, true);
}

void Memory::deliver(std::size_t which) {
  const Store& store = stores_[flying_[which]];
  apply(first_of(store.lane.rank, store.word));
}

// Also what must arrive before them, which may stand anywhere in flying_.
template <class Matches>
void Memory::deliver_all(Matches&& matches) {
  std::vector<std::uint32_t> found;
  for (const std::uint32_t s : flying_) {
    if (matches(stores_[s])) found.push_back(s);
  }
  for (const std::uint32_t s : found) {
    while (stores_[s].position != kNone) apply(first_of(stores_[s].lane.rank, stores_[s].word));
  }
}

void Memory::barrier(Word rank, Word call, Word block) {
  for (const std::uint32_t s : flying_) {
    const LaneId& by = stores_[s].lane;
    if (by.rank == rank && by.call == call && by.block == block) stores_[s].behind_barrier = true;
  }
}

void Memory::fence(LaneId lane) {
  deliver_all([&](const Store& store) {
    const LaneId& by = store.lane;
    const bool of_block = by.rank == lane.rank && by.call == lane.call && by.block == lane.block;
    return by == lane || (of_block && store.behind_barrier);
  });
}

void Memory::launch_boundary(Word rank, Word call) {
  deliver_all(
      [&](const Store& store) { return store.lane.rank == rank && store.lane.call <= call && own(rank, store.word); });
}

std::size_t Memory::find_posted_by(Word rank) const {
  std::size_t i = 0;
  while (i < flying_.size() && stores_[flying_[i]].lane.rank != rank) ++i;
  return i;
}

void Memory::lose(std::size_t which) { remove(flying_[which]); }

}  // namespace pcie_allreduce::fabric
