// Every access of a lane is a moment at which the adversary may act.
#include <bit>
#include <cstring>

#include "fabric/simulation.h"

namespace pcie_allreduce::fabric {
namespace {

constexpr Word kOrders = 4;  // of a pack's words: any is allowed, these stand for all
constexpr Word kOrder[kOrders][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};

}  // namespace

void Lane::access() {
  simulation_.strike(*this);
  simulation_.scheduler().access(*this);
}

// Loads are watched: a lane that waits is woken by a change of what it has looked at.
Word Lane::load(const Word* word) {
  access();
  const Word index = simulation_.memory().index(word);
  simulation_.scheduler().watch(*this, index);
  return simulation_.memory().load(id, index);
}

bool Lane::store_word(Word word, Word value) {
  access();
  Scheduler& scheduler = simulation_.scheduler();
  const bool delayed = scheduler.choose(*this, 2, scheduler.mood().delay) != 0;
  const bool held = delayed && scheduler.choose(*this, 2, scheduler.mood().hold) != 0;
  return simulation_.memory().store(id, word, value, !delayed, held);
}

void Lane::store(Word* word, Word value) {
  const Word index = simulation_.memory().index(word);
  const bool arrived = store_word(index, value);
  simulation_.note(*this, {.what = Happened::kStores, .word = index, .value = {value}, .note = !arrived});
}

Word Lane::store_pack(Pack* slot, const Pack& value) {
  Scheduler& scheduler = simulation_.scheduler();
  const Word first = simulation_.memory().index(slot);
  const Word order = scheduler.choose(*this, kOrders, scheduler.mood().tear);
  Word flying = 0;
  for (const Word w : kOrder[order]) {
    if (!store_word(first + w, value.word[w])) flying |= 1u << w;
  }
  return flying;
}

void Lane::put(Pack* slot, const Pack& value) {
  const Word first = simulation_.memory().index(slot);
  const Word reader = simulation_.memory().home(first);
  simulation_.checker().sent(rank_.number, grid_.call, reader);
  const Word flying = store_pack(slot, value);
  simulation_.note(*this, {.what = Happened::kPuts,
                           .word = first,
                           .value = {value.word[0], value.word[1], value.word[2], value.word[3]},
                           .note = flying});
}

void Lane::arm(Pack* slot) {
  const Word flying = store_pack(slot, empty_pack());
  simulation_.note(*this, {.what = Happened::kArms, .word = simulation_.memory().index(slot), .note = flying});
}

Pack Lane::peek(const Pack* slot) {
  Scheduler& scheduler = simulation_.scheduler();
  const Word first = simulation_.memory().index(slot);
  const Word order = scheduler.choose(*this, kOrders, scheduler.mood().tear);
  const Word home = simulation_.memory().home(first);
  if (home != rank_.number) simulation_.checker().read(rank_.number, grid_.call, home);
  Event event{.what = Happened::kLooks, .word = first};
  Pack pack;
  for (const Word w : kOrder[order]) {
    pack.word[w] = load(&slot->word[w]);
    event.value[w] = pack.word[w];
    event.origin[w] = simulation_.memory().origin(first + w);
  }
  simulation_.note(*this, event);
  return pack;
}

PeerWait Lane::waited(Word peer) {
  if (block() != 0) return {};
  const Word* from = reinterpret_cast<const Word*>(&channel_.state->waited[peer]);
  Word words[sizeof(PeerWait) / sizeof(Word)];
  for (Word w = 0; w < 4; ++w) words[w] = load(from + w);
  return std::bit_cast<PeerWait>(words);
}

void Lane::set_waited(Word peer, const PeerWait& waited) {
  if (block() != 0) return;
  store_pack(reinterpret_cast<Pack*>(&channel_.state->waited[peer]), std::bit_cast<Pack>(waited));
}

void Lane::fence() {
  access();
  simulation_.memory().fence(id);
  simulation_.note(*this, {.what = Happened::kFences});
}

void Lane::raise(Word* flag, Word count) {
  simulation_.checker().flagged(rank_.number, grid_.call, simulation_.memory().home(simulation_.memory().index(flag)));
  store(flag, count);
}
bool Lane::raised(const Word* flag, Word count) { return reached(load(flag), count); }

bool Lane::elect(Word* word) {
  access();
  return simulation_.memory().exchange(id, simulation_.memory().index(word), 1) == 0;
}

// The caller's memory. Plain accesses: what they may race with is kept apart by launch boundaries.
Pack Lane::read(const Request& request, Word pack) {
  access();
  Pack value{};
  const Word offset = pack * Word{sizeof(Pack)};
  if (offset < request.bytes) {
    std::memcpy(&value, static_cast<const char*>(request.in) + offset,
                std::min<Word>(sizeof value, request.bytes - offset));
  }
  return value;
}

void Lane::write(const Request& request, Word pack, const Pack& value) {
  access();
  const Word offset = pack * Word{sizeof(Pack)};
  if (offset < request.bytes) {
    std::memcpy(static_cast<char*>(request.out) + offset, &value, std::min<Word>(sizeof value, request.bytes - offset));
  }
  simulation_.note(
      *this,
      {.what = Happened::kWrites, .word = pack, .value = {value.word[0], value.word[1], value.word[2], value.word[3]}});
}

}  // namespace pcie_allreduce::fabric
