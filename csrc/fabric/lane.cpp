#include "fabric/lane.h"

#include <bit>
#include <cstring>

#include "fabric/simulation.h"
#include "protocol/report.h"

namespace pcie_allreduce::fabric {
namespace {

constexpr Word kOrders = 4;  // of a pack's words: any is allowed, these stand for all
constexpr Word kOrder[kOrders][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};

}  // namespace

Lane::Lane(Simulation& simulation, Rank& rank, Grid& grid, Word block, Word thread)
    : simulation_(simulation),
      rank_(rank),
      grid_(grid),
      channel_(simulation.channel(rank.number)),
      data_threads_(simulation.scenario().calls[grid.call].shape[rank.number].threads) {
  id = {static_cast<std::uint8_t>(rank.number), static_cast<std::uint8_t>(grid.call), static_cast<std::uint8_t>(block),
        static_cast<std::uint8_t>(thread)};
}

Lane& Lane::current() { return static_cast<Lane&>(*Scheduler::current()); }

std::uint64_t Lane::now() const { return simulation_.scheduler().now(); }

Word Lane::stewards() const {
  return simulation_.scenario().mapping == Mapping::kStewards ? simulation_.scenario().stewards : 0;
}
Word Lane::steward() const {
  if (stewards() == 0) return thread();
  return moves_data() ? ~0u : thread() - data_threads_;
}
Word Lane::steward_count() const { return stewards() == 0 ? data_threads_ : stewards(); }

Range Lane::share(Word units) const {
  const Word first = moves_data() ? block() * data_threads_ + thread() : units;
  return {first, units, static_cast<Word>(grid_.blocks.size()) * data_threads_};
}
Range Lane::once_a_block(Word tasks) const {
  return {steward() < steward_count() ? steward() : tasks, tasks, steward_count()};
}
Range Lane::once_a_rank(Word tasks) const {
  return block() == 0 ? once_a_block(tasks) : Range{tasks, tasks, steward_count()};
}

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
  const Word* from = reinterpret_cast<const Word*>(&control_of(channel_.slab[rank_.number])->waited[peer]);
  Word words[sizeof(PeerWait) / sizeof(Word)];
  for (Word w = 0; w < 4; ++w) words[w] = load(from + w);
  return std::bit_cast<PeerWait>(words);
}

void Lane::set_waited(Word peer, const PeerWait& waited) {
  if (block() != 0) return;
  store_pack(reinterpret_cast<Pack*>(&control_of(channel_.slab[rank_.number])->waited[peer]),
             std::bit_cast<Pack>(waited));
}

void Lane::fence() {
  access();
  simulation_.memory().fence(id);
  simulation_.note(*this, {.what = Happened::kFences});
}

bool Lane::elect(Word* word) {
  access();
  return simulation_.memory().exchange(id, simulation_.memory().index(word), 1) == 0;
}

void Lane::settle() {
  asleep_until = now() + 500'000'000;
  simulation_.scheduler().pause(*this);
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

void Lane::wait_for_predecessor() {
  access();
  while (!simulation_.predecessor_complete(rank_, grid_)) simulation_.scheduler().block(*this);
}

Call Lane::read_state() {
  const Control* control = control_of(channel_.slab[rank_.number]);
  const Word* line = &control->block[block()].call;
  Word words[sizeof(BlockState) / sizeof(Word)];
  for (Word w = 0; w < 8; ++w) words[w] = load(line + w);
  std::memcpy(&state_, words, sizeof state_);
  const Word mark = load(&control->abort[rank_.number]);
  return {state_.call, state_.phase, state_.used[phase_before(state_.phase % kPhases)], mark != 0};
}

Call Lane::begin_call() {
  wait_for_predecessor();
  const Call call = read_state();
  simulation_.note(*this, {.what = Happened::kReads, .value = {call.number, call.phase, call.stale, call.failed}});
  return call;
}

bool Lane::any_failed(bool failed) {
  const bool any = meet(failed);
  simulation_.trigger(rank_, grid_, id.block);
  return any;
}

bool Lane::meet(bool failed) {
  access();
  simulation_.note(*this, {.what = Happened::kMeets, .note = failed});
  Grid::Block& block = grid_.blocks[id.block];
  const Word before = block.barriers;
  block.failed |= failed;
  ++block.waiting;
  simulation_.arrive_at_barrier(grid_, id.block);
  while (block.barriers == before) simulation_.scheduler().block(*this);
  return block.any_failed;
}

BlockState Lane::next_state(const Call& call, Word used) const {
  BlockState next = state_;
  next.call = call.number + 1;
  next.phase = phase_after(call.phase);
  next.used[call.phase] = used;
  const bool settled = rank_.requests[grid_.call].captured || state_.settled == kWarmupCalls;
  next.settled = settled ? kWarmupCalls : state_.settled + 1;
  return next;
}

void Lane::end_call(const Call& call, Word used) {
  if (steward() >= steward_count()) return;
  const Word blocks = static_cast<Word>(grid_.blocks.size());
  write_state(block() + steward() * blocks, steward_count() * blocks, next_state(call, used));
}

// Also the lines of blocks that this launch does not have, since the next may have them.
void Lane::write_state(Word first, Word step, const BlockState& state) {
  Control* control = control_of(channel_.slab[rank_.number]);
  for (Word b = first; b < kStateLines; b += step) {
    Word words[sizeof(BlockState) / sizeof(Word)];
    std::memcpy(words, &state, sizeof words);
    for (Word w = 0; w < 6; ++w) store_word(simulation_.memory().index(&control->block[b].call + w), words[w]);
    simulation_.note(*this, {.what = Happened::kEnds, .value = {b, state.call, state.phase}});
  }
}

std::uint64_t Lane::limit() const {
  return state_.settled < kWarmupCalls ? channel_.warmup_timeout_ns : channel_.timeout_ns;
}

WaitVerdict Lane::keep_waiting(Wait& wait, const Call& call) {
  constexpr Word kPollsBetweenLooks = 2;
  const bool looks = ++wait.polls % kPollsBetweenLooks == 0;
  simulation_.scheduler().poll(*this, wait.began + limit() + wait.grace + 1, !looks && wait.began != 0);
  if (!looks) return WaitVerdict::kGoOn;
  access();
  if (wait.began == 0) wait.began = now();
  waited_ = now() - wait.began;
  const Word* abort = control_of(channel_.slab[rank_.number])->abort;
  bool aborted = false;
  for (Word peer = 0; peer < channel_.world; ++peer) aborted |= aborts(load(abort + peer), call.number);
  if (aborted) return WaitVerdict::kAborted;
  return waited_ > limit() + wait.grace ? WaitVerdict::kOutOfTime : WaitVerdict::kLook;
}

void Lane::fault(const Fault& fault, const Call& call) {
  simulation_.note(*this,
                   {.what = Happened::kAccuses, .value = {fault.missing}, .note = static_cast<Word>(fault.reason)});
  simulation_.checker().gave_up(rank_.number, grid_.call, fault.reason);
  publish_fault<Access>(channel_, rank_.requests[grid_.call], call, fault, waited_);
}

Pack* Lane::shared() const { return simulation_.memory().shared(); }
Word* Lane::flag(Word at, Word source) const {
  return &control_of(channel_.slab[at])->unused[source * kMostBlocks + id.block];
}
Word Lane::largest_payload() const { return static_cast<Word>(rank_.caller.in.size()); }
Word Lane::packs_of_call(Word call) const { return rank_.requests[call].units(); }

}  // namespace pcie_allreduce::fabric
