#include "fabric/lane.h"

#include <cstring>

#include "fabric/simulation.h"
#include "protocol/report.h"

namespace pcie_allreduce::fabric {
namespace {

Word& used_in(BlockState& state, Word phase) { return phase < kPhases ? state.used[phase] : state.used_fourth; }

// Lanes of two-shot, one way to deal them out (a GPU has its own): lane `lane` of a block of `lanes` has hops to
// owners, one where there are as many lanes as hops, and places in shards.
struct OwnerLanes {
  Word places;  // of a block, at a time
  Word groups;  // of lanes with the same hops

  OwnerLanes(Word lanes, Word world)
      : places(lanes < world ? 1 : lanes / world), groups(lanes < world ? lanes : world) {}

  Range hops(Word lane, Word world) const { return {lane < places * groups ? lane / places : world, world, groups}; }
  Range in_shard(Word lane, Word block, Word blocks, Word shard) const {
    return {block * places + lane % places, shard, blocks * places};
  }
};

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

Dtype Lane::dtype() const { return kind_dtype(rank_.requests[grid_.call].kind); }

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
  return {first, units, blocks() * data_threads_};
}
Range Lane::hops(Word world) const {
  return moves_data() ? OwnerLanes(data_threads_, world).hops(thread(), world) : Range{world, world, 1};
}
Range Lane::places(Word shard, Word world) const {
  return OwnerLanes(data_threads_, world).in_shard(thread(), block(), blocks(), shard);
}
// As the GPU's machine, where a lane has one place; else in another order than that of sending.
Range Lane::own_places(Word shard, Word world) const {
  const Range mine = places(shard, world);
  if (!moves_data() || data_threads_ < world || mine.step < shard) return share(shard);
  return hops(world).first + 1 == world ? mine : Range{shard, shard, 1};
}
Range Lane::once_a_block(Word tasks) const {
  return {steward() < steward_count() ? steward() : tasks, tasks, steward_count()};
}
Range Lane::once_a_rank(Word tasks) const {
  return block() == 0 ? once_a_block(tasks) : Range{tasks, tasks, steward_count()};
}

Word Lane::blocks() const { return static_cast<Word>(grid_.blocks.size()); }

void Lane::wait_for_predecessor() {
  access();
  while (!simulation_.predecessor_complete(rank_, grid_)) simulation_.scheduler().block(*this);
}

Call Lane::read_state() {
  const Word* line = &channel_.state->block[block()].call;
  Word words[sizeof(BlockState) / sizeof(Word)];
  for (Word w = 0; w < 8; ++w) words[w] = load(line + w);
  std::memcpy(&state_, words, sizeof state_);
  const Word mark = load(abort_word_of(channel_, rank_.number));
  const Word stale = channel_.staged() ? used_in(state_, two_phases_before(state_.phase))
                                       : state_.used[phase_before(state_.phase % kPhases)];
  return {state_.call, state_.phase, stale, mark != 0};
}

Call Lane::begin_call() {
  wait_for_predecessor();
  const Call call = read_state();
  simulation_.note(*this, {.what = Happened::kReads, .value = {call.number, call.phase, call.stale, call.failed}});
  return call;
}

bool Lane::any_failed(bool failed) {
  publish();
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
  next.phase = channel_.staged() ? staged_phase_after(call.phase) : phase_after(call.phase);
  used_in(next, call.phase) = used;
  const bool settled = rank_.requests[grid_.call].captured || state_.settled == kWarmupCalls;
  next.settled = settled ? kWarmupCalls : state_.settled + 1;
  return next;
}

void Lane::end_call(const Call& call, Word used) {
  if (steward() >= steward_count()) return;
  write_state(block() + steward() * blocks(), steward_count() * blocks(), next_state(call, used));
}

// Also the lines of blocks that this launch does not have, since the next may have them.
void Lane::write_state(Word first, Word step, const BlockState& state) {
  const Word used_words = channel_.staged() ? 7 : 6;
  for (Word b = first; b < kStateLines; b += step) {
    Word words[sizeof(BlockState) / sizeof(Word)];
    std::memcpy(words, &state, sizeof words);
    for (Word w = 0; w < used_words; ++w) {
      store_word(simulation_.memory().index(&channel_.state->block[b].call + w), words[w]);
    }
    simulation_.note(*this, {.what = Happened::kEnds, .value = {b, state.call, state.phase}});
  }
}

std::uint64_t Lane::limit() const {
  return state_.settled < kWarmupCalls ? channel_.warmup_timeout_ns : channel_.timeout_ns;
}

WaitVerdict Lane::keep_waiting(Wait& wait, const Call& call) {
  constexpr Word kPollsBetweenLooks = 2;
  const bool looks = ++wait.polls % kPollsBetweenLooks == 0;
  // A lane that has seen why it must give up does so at its next look, whatever changes.
  const bool may_sleep = !looks && wait.began != 0 && wait.due == WaitVerdict::kLook;
  simulation_.scheduler().poll(*this, wait.began + limit() + wait.grace + 1, may_sleep);
  if (!looks) return WaitVerdict::kGoOn;
  access();
  if (wait.began == 0) wait.began = now();
  waited_ = now() - wait.began;
  bool aborted = false;
  for (Word peer = 0; peer < channel_.world; ++peer) {
    aborted |= aborts(load(abort_word_of(channel_, peer)), call.number);
  }
  if (aborted) return WaitVerdict::kAborted;
  return waited_ > limit() + wait.grace ? WaitVerdict::kOutOfTime : WaitVerdict::kLook;
}

void Lane::settle() {
  asleep_until = now() + kSettleNs;
  simulation_.scheduler().pause(*this);
}

// The GPU's machine publishes behind the loops, the CPU's at once.
void Lane::fault(const Fault& fault, const Call&) {
  simulation_.note(*this,
                   {.what = Happened::kAccuses, .value = {fault.missing}, .note = static_cast<Word>(fault.reason)});
  simulation_.checker().gave_up(rank_.number, grid_.call, fault.reason);
  fault_ = fault;
  faulted_ = true;
  if (simulation_.scenario().mapping == Mapping::kLines) publish();
}

void Lane::publish() {
  if (faulted_) {
    publish_fault<Access>(channel_, rank_.requests[grid_.call], {state_.call, state_.phase, 0, false}, fault_, waited_);
  }
  faulted_ = false;
}

Word* Lane::verdict() const { return simulation_.memory().verdict(rank_.number); }

}  // namespace pcie_allreduce::fabric
