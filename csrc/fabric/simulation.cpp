#include "fabric/simulation.h"

#include <algorithm>

namespace pcie_allreduce::fabric {
namespace {

constexpr std::uint64_t kTimeout = std::uint64_t{1} << 30;  // of steps: reached only when nothing else can happen
constexpr std::uint64_t kWarmupTimeout = std::uint64_t{1} << 31;
constexpr std::uint64_t kLate = std::uint64_t{1} << 24;
constexpr std::uint64_t kTooLate = std::uint64_t{1} << 34;
constexpr std::uint64_t kStepLimit = 4'000'000;

Word largest_area(const Scenario& scenario) {
  Word largest = 0;
  for (Word call = 0; call < scenario.calls.size(); ++call) {
    for (Word rank = 0; rank < scenario.world; ++rank) {
      Request request = request_of(scenario, rank, call);
      const auto laid_out = scenario.calls[call].algorithm->laid_out;
      const Word rows = laid_out == nullptr ? 0 : laid_out(request, scenario.world) * static_cast<Word>(sizeof(Pack));
      request.bytes = std::max(request.bytes, rows);
      largest = std::max(largest, used_packs(request, scenario.world, scenario.transport, scenario.sum_copies));
    }
  }
  return largest;
}

Word area_packs(const Scenario& scenario) { return largest_area(scenario) * scenario.areas; }

Word caller_packs(const Scenario& scenario) {
  Word packs = 0;
  for (Word call = 0; call < scenario.calls.size(); ++call) {
    const Word chunks = most_chunks(*scenario.calls[call].algorithm, scenario.world);
    for (Word rank = 0; rank < scenario.world; ++rank) {
      packs = std::max(packs, chunks * request_of(scenario, rank, call).units());
    }
  }
  return packs + 1;  // one more, that nobody may touch
}

}  // namespace

Request request_of(const Scenario& scenario, Word rank, Word call) {
  const CallPlan& plan = scenario.calls[call];
  Word bytes = plan.elements * element_bytes(plan.dtype);
  Dtype dtype = plan.dtype;
  if (rank == scenario.troubled_rank && call == scenario.troubled_call) {
    if (scenario.trouble == Trouble::kOtherDtype) {
      dtype = dtype == Dtype::kBFloat16 ? Dtype::kFloat16 : Dtype::kBFloat16;  // of as many bytes
    } else if (scenario.trouble == Trouble::kOtherSize) {
      bytes += element_bytes(dtype) * (1 + scenario.troubled_access % 40);
    }
  }
  const Shape shape = plan.shape[rank];
  const Word launch = scenario.transport == Transport::kPull ? shape.blocks << 16 | shape.threads : kNoRows;
  return {nullptr, nullptr, bytes, signature_kind(plan.algorithm->id, dtype), plan.captured, launch};
}

Simulation::Simulation(const Scenario& scenario, Choices& choices, FiberPool& fibers, LaneMaker maker,
                       Timeline* timeline)
    : scenario_(scenario),
      scheduler_(choices, fibers, scenario.mood),
      memory_(scenario.world, area_packs(scenario), scenario.transport, scheduler_),
      residents_(scenario.multiprocessors, 0),
      checker_(scenario, channels_, memory_, scheduler_),
      maker_(maker),
      timeline_(timeline) {
  scheduler_.attach(memory_, timeline);
  const std::size_t packs = caller_packs(scenario);
  for (Word r = 0; r < scenario.world; ++r) {
    Rank& rank = ranks_[r];
    rank.number = r;
    Channel& channel = channels_.emplace_back();
    for (Word peer = 0; peer < scenario.world; ++peer) channel.slab[peer] = memory_.slab(peer);
    channel.state = memory_.state(r);
    channel.transport = scenario.transport;
    channel.record = memory_.record(r);
    channel.rank = r;
    channel.world = scenario.world;
    channel.make_room(area_packs(scenario));
    set_copies(channel, scenario.sum_copies, r % scenario.sum_copies);
    channel.islands = islands_of(scenario.first_island, scenario.world, r);
    channel.timeout_ns = kTimeout;
    channel.warmup_timeout_ns = kWarmupTimeout;
    rank.caller.in.resize(packs);
    rank.caller.out.resize(packs);
    const bool closes = scenario.trouble == Trouble::kClosed && r == scenario.troubled_rank;
    const Word all = static_cast<Word>(scenario.calls.size());
    const Word calls = closes ? std::min(scenario.troubled_call, all) : all;
    rank.grids.resize(calls);
    for (Word call = 0; call < calls; ++call) {
      Request request = request_of(scenario, r, call);
      request.in = rank.caller.in.data();
      request.out = scenario.calls[call].in_place ? rank.caller.in.data() : rank.caller.out.data();
      rank.requests.push_back(request);
      rank.grids[call].call = call;
    }
    for (BlockState& state : channel.state->block) {
      state.call = scenario.first_call;
      state.phase = scenario.first_phase;
      state.settled = scenario.settled;
    }
    for (Word& agreed : channel.state->agreed) agreed = scenario.first_call;  // as the call before has left it
    Word* flags = flag_of(memory_.slab(r), 0, 0);
    if (scenario.transport == Transport::kPull) std::fill_n(flags, kMaxBlocks * kMaxWorld, 2 * scenario.first_call);
  }
}

Violation Simulation::run() {
  for (Word r = 0; r < scenario_.world; ++r) {
    if (ranks_[r].grids.empty()) {
      close(ranks_[r]);
    } else {
      prepare(ranks_[r], 0);
      start(ranks_[r], 0, false);
    }
  }
  const bool ended = scheduler_.run(kStepLimit);
  for (const Rank& rank : ranks_) {
    if (scheduler_.dead(rank.number)) continue;
    for (const Grid& grid : rank.grids) {
      if (grid.complete) continue;
      checker_.violate(ended ? Breach::kDeadlock : Breach::kEndless, rank.number, grid.call,
                       ended ? "nothing can happen any more, and it has not ended" : "it does not end");
    }
  }
  while (memory_.in_flight() != 0) memory_.deliver(0);
  checker_.at_end();
  return checker_.violation();
}

bool Simulation::predecessor_complete(const Rank& rank, const Grid& grid) const {
  return grid.call == 0 || rank.grids[grid.call - 1].complete;
}

void Simulation::note(const Lane& lane, Event event) {
  if (timeline_ == nullptr) return;
  event.time = scheduler_.now();
  event.lane = lane.id;
  timeline_->add(event);
}

// The kernel before this call, as it were: it leaves the input, and whatever the output's memory held.
void Simulation::prepare(Rank& rank, Word call) {
  checker_.fill_input(rank.number, call, rank.caller.in);
  checker_.fill_junk(rank.caller.out);
}

void Simulation::start(Rank& rank, Word call, bool early) {
  Grid& grid = rank.grids[call];
  grid.started = true;
  grid.preceded = early;
  const Shape shape = scenario_.calls[call].shape[rank.number];
  const Word lanes = shape.threads + (scenario_.mapping == Mapping::kStewards ? scenario_.stewards : 0);
  grid.lanes_left = shape.blocks * lanes;
  grid.blocks_to_trigger = shape.blocks;
  grid.blocks.assign(shape.blocks, {});
  for (Grid::Block& block : grid.blocks) block.lanes = lanes;
  place_all();
}

// Blocks start where there is room for them, those of a grid in their order.
void Simulation::place_all() {
  for (Rank& rank : ranks_) {
    for (Grid& grid : rank.grids) {
      while (grid.started && grid.placed < grid.blocks.size() && find_room(grid, grid.blocks[grid.placed])) {
        launch(rank, grid, grid.placed++);
      }
    }
  }
}

// On the multiprocessor that has fewest. The kernel before a grid, which is as good as over when it may start, needs
// one that has none.
bool Simulation::find_room(Grid& grid, Grid::Block& block) {
  if (residents_.empty()) return true;
  const auto emptiest = std::min_element(residents_.begin(), residents_.end());
  grid.preceded = grid.preceded || *emptiest == 0;
  if (!grid.preceded || *emptiest == kBlocksAtOnce) return false;
  ++*emptiest;
  block.multiprocessor = static_cast<Word>(emptiest - residents_.begin());
  return true;
}

// What a process leaves on the GPU goes with it, and nothing more of it starts.
void Simulation::clear_away(Rank& rank) {
  if (residents_.empty()) return;
  for (Grid& grid : rank.grids) {
    for (Word block = 0; block < grid.placed; ++block) {
      if (grid.blocks[block].lanes > 0) --residents_[grid.blocks[block].multiprocessor];
    }
    grid.placed = static_cast<Word>(grid.blocks.size());
  }
  place_all();
}

void Simulation::launch(Rank& rank, Grid& grid, Word block) {
  for (Word thread = 0; thread < grid.blocks[block].lanes; ++thread) {
    grid.lanes.push_back(maker_(*this, rank, grid, block, thread));
    Lane& lane = *grid.lanes.back();
    scheduler_.add(lane, [this, &rank, &grid, &lane, block] {
      try {
        scenario_.calls[grid.call].algorithm->run(lane, channels_[rank.number], rank.requests[grid.call],
                                                  scenario_.mapping);
      } catch (const std::out_of_range& error) {
        checker_.violate(Breach::kOutside, rank.number, grid.call, error.what());
      }
      left(rank, grid, block);
    });
  }
}

void Simulation::left(Rank& rank, Grid& grid, Word block) {
  --grid.blocks[block].lanes;
  if (grid.blocks[block].lanes == 0) {
    trigger(rank, grid, block);
    if (!residents_.empty()) --residents_[grid.blocks[block].multiprocessor];
  } else {
    arrive_at_barrier(grid, block);
  }
  if (--grid.lanes_left == 0) complete(rank, grid);
  if (!residents_.empty()) place_all();
}

// A lane that has left is not waited for.
void Simulation::arrive_at_barrier(Grid& grid, Word block) {
  Grid::Block& at = grid.blocks[block];
  if (at.waiting == 0 || at.waiting < at.lanes) return;
  at.waiting = 0;
  at.any_failed = at.failed;
  at.failed = false;
  ++at.barriers;
  memory_.barrier(grid.lanes[0]->id.rank, grid.call, block);
  for (const auto& lane : grid.lanes) {
    if (lane->id.block == block) scheduler_.unblock(*lane);
  }
}

// Once every block has said so, or has left, the next grid may start, and wait for the end of this one.
void Simulation::trigger(Rank& rank, Grid& grid, Word block) {
  if (grid.blocks[block].triggered) return;
  grid.blocks[block].triggered = true;
  const Word next = grid.call + 1;
  if (--grid.blocks_to_trigger == 0 && next < rank.grids.size() && scenario_.calls[next].dependent) {
    start(rank, next, true);
  }
}

void Simulation::complete(Rank& rank, Grid& grid) {
  if (!predecessor_complete(rank, grid)) {
    checker_.violate(Breach::kOvertaken, rank.number, grid.call, "it was complete before its predecessor");
    return;
  }
  grid.complete = true;
  if (scenario_.boundary_drains) memory_.launch_boundary(rank.number, grid.call);
  if (timeline_ != nullptr) {
    timeline_->add({.time = scheduler_.now(), .lane = grid.lanes[0]->id, .what = Happened::kCompletes});
  }
  const Request& request = rank.requests[grid.call];
  checker_.completed(rank.number, grid.call, request.out == rank.caller.in.data() ? rank.caller.in : rank.caller.out);
  const Word next = grid.call + 1;
  if (next == rank.grids.size()) {
    if (next < scenario_.calls.size()) close(rank);
    return;
  }
  prepare(rank, next);
  if (!rank.grids[next].started) start(rank, next, false);
  for (const auto& lane : rank.grids[next].lanes) scheduler_.unblock(*lane);
}

// The host's farewell: peers are not to wait for this rank any more. It may overtake what its kernels have stored.
void Simulation::close(Rank& rank) {
  checker_.struck();
  const Word call = static_cast<Word>(rank.grids.size());
  const Word farewell = abort_word(Reason::kClosed, rank.number, scenario_.first_call + call);
  const LaneId host{static_cast<std::uint8_t>(rank.number), static_cast<std::uint8_t>(call), 0, kHostThread};
  for (Word peer = 0; peer < scenario_.world; ++peer) {
    if (peer == rank.number) continue;
    memory_.store(host, memory_.index(&control_of(memory_.slab(peer))->abort[rank.number]), farewell, false, false);
  }
  if (timeline_ != nullptr) timeline_->add({.time = scheduler_.now(), .lane = host, .what = Happened::kCloses});
}

void Simulation::strike(Lane& lane) {
  if (lane.id.rank != scenario_.troubled_rank || lane.id.call != scenario_.troubled_call) return;
  const Trouble trouble = scenario_.trouble;
  if (trouble != Trouble::kLate && trouble != Trouble::kFrozen && trouble != Trouble::kKilled) return;
  Rank& rank = ranks_[lane.id.rank];
  if (++rank.accesses != scenario_.troubled_access) return;
  checker_.struck();
  if (trouble == Trouble::kKilled) {
    note(lane, {.what = Happened::kDies});
    die(lane);
  }
  const std::uint64_t until = scheduler_.now() + (trouble == Trouble::kLate ? kLate : kTooLate);
  note(lane, {.what = Happened::kFreezes, .note = until});
  scheduler_.freeze(rank.number, until);
  scheduler_.pause(lane);
}

void Simulation::die(Lane& lane) {
  const Word rank = lane.id.rank;
  for (std::size_t i = memory_.find_posted_by(rank); i < memory_.in_flight(); i = memory_.find_posted_by(rank)) {
    if (scenario_.stores_lost && scheduler_.any(lane, 2) != 0) {
      memory_.lose(i);
    } else {
      memory_.deliver(i);
    }
  }
  scheduler_.kill(rank);
  clear_away(ranks_[rank]);
  scheduler_.give_up(lane);
}

}  // namespace pcie_allreduce::fabric
