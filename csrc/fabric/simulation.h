// One schedule: ranks with their streams of launches over one memory and one scheduler. A launch may start while its
// predecessor ends, where it is a dependent one; caller's memory changes hands when a launch is complete.
#pragma once

#include <memory>

#include "fabric/algorithms.h"
#include "fabric/checker.h"
#include "fabric/lane.h"

namespace pcie_allreduce::fabric {

struct Grid {
  struct Block {
    Word lanes = 0;     // that have not left
    Word waiting = 0;   // at the barrier
    Word barriers = 0;  // that are behind it
    bool failed = false;
    bool any_failed = false;  // at the last barrier
    bool triggered = false;
    Word multiprocessor = 0;  // where ranks share a GPU
  };
  Word call = 0;
  Word lanes_left = 0;
  Word blocks_to_trigger = 0;
  Word placed = 0;        // blocks that have started
  bool preceded = false;  // where ranks share a GPU: by a kernel that needs a multiprocessor for itself, and has run
  bool started = false;
  bool complete = false;
  std::vector<Block> blocks;
  std::vector<std::unique_ptr<Lane>> lanes;
};

struct Rank {
  Word number = 0;
  std::vector<Grid> grids;  // that it will launch, one a call
  std::vector<Request> requests;
  Caller caller;      // its input and output memory
  Word accesses = 0;  // in the call of the trouble
};

using LaneMaker = std::unique_ptr<Lane> (*)(Simulation&, Rank&, Grid&, Word block, Word thread);

class Simulation {
 public:
  Simulation(const Scenario& scenario, Choices& choices, FiberPool& fibers, LaneMaker maker, Timeline* timeline);

  Violation run();  // what kind of violation, if any, and where

  // For lanes.
  const Scenario& scenario() const { return scenario_; }
  Scheduler& scheduler() { return scheduler_; }
  Memory& memory() { return memory_; }
  const Memory& memory() const { return memory_; }
  Checker& checker() { return checker_; }
  Timeline* timeline() { return timeline_; }
  const Channel& channel(Word rank) const { return channels_[rank]; }
  Rank& rank(Word number) { return ranks_[number]; }
  bool predecessor_complete(const Rank& rank, const Grid& grid) const;
  void arrive_at_barrier(Grid& grid, Word block);
  void trigger(Rank& rank, Grid& grid, Word block);
  void strike(Lane& lane);  // the scenario's trouble, when its moment has come
  void note(const Lane& lane, Event event);

 private:
  void prepare(Rank& rank, Word call);
  void start(Rank& rank, Word call, bool early);
  void place_all();
  bool find_room(Grid& grid, Grid::Block& block);
  void launch(Rank& rank, Grid& grid, Word block);
  void clear_away(Rank& rank);
  void left(Rank& rank, Grid& grid, Word block);
  void complete(Rank& rank, Grid& grid);
  void close(Rank& rank);
  void die(Lane& lane);

  const Scenario& scenario_;
  std::array<Rank, kMaxWorld> ranks_;  // outlive the scheduler, which gives back the stacks of their lanes
  Scheduler scheduler_;
  Memory memory_;
  std::vector<Channel> channels_;
  std::vector<Word> residents_;  // blocks on each multiprocessor
  Checker checker_;
  LaneMaker maker_;
  Timeline* timeline_;
};

Request request_of(const Scenario& scenario, Word rank, Word call);

}  // namespace pcie_allreduce::fabric
