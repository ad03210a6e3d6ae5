// Which lane does its next access, and which store arrives before it. The adversary may interrupt a lane at every
// access, starve it, stop a whole rank for a while, and hold stores back for as long as anybody can do without them;
// but it is fair in the end: what is needed arrives, and who is alive goes on.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "fabric/choices.h"
#include "fabric/fiber.h"
#include "fabric/memory.h"
#include "fabric/timeline.h"

namespace pcie_allreduce::fabric {

// How hostile a schedule is; odds in 256.
struct Mood {
  Word event;    // something happens at an access
  Word delay;    // a store does not arrive at once
  Word hold;     // a delayed store is held back as long as possible
  Word shuffle;  // the next lane is any lane, and not the one that has waited longest
  Word tear;     // the words of a pack are stored and loaded in another order
};

struct Task {
  enum class State { kReady, kRunning, kPolling, kBlocked, kGone };
  LaneId id{};
  Fiber* fiber = nullptr;
  State state = State::kReady;
  std::uint64_t asleep_until = 0;
  std::uint64_t deadline = 0;
  bool fresh = false;         // something that it has looked at has changed since
  std::vector<Word> watched;  // packs
  std::uint32_t decisions = 0;
};

class Scheduler final : public Watcher {
 public:
  Scheduler(Choices& choices, FiberPool& fibers, const Mood& mood) : choices_(choices), fibers_(fibers), mood_(mood) {}
  ~Scheduler();

  void attach(Memory& memory, Timeline* timeline);
  void add(Task& task, std::function<void()> body);
  bool run(std::uint64_t steps);  // false: still at it after so many accesses
  void stop() { stopped_ = true; }

  // Called by a lane about itself.
  void access(Task& task);
  void watch(Task& task, Word word);
  void poll(Task& task, std::uint64_t deadline, bool may_sleep);
  void block(Task& task);
  void pause(Task& task);
  void give_up(Task& task);  // does not return when its rank is dead
  Word choose(Task& task, Word count, Word odds);
  Word any(Task& task, Word count);  // 0 is the harmless one

  void unblock(Task& task);
  void freeze(Word rank, std::uint64_t until) { frozen_until_[rank] = until; }
  void kill(Word rank);
  bool dead(Word rank) const { return dead_[rank]; }
  static Task* current();

  std::uint64_t now() const { return now_; }
  std::uint64_t steps() const { return steps_; }
  const Mood& mood() const { return mood_; }
  void arrived(Word word, bool late) override;

 private:
  bool eligible(const Task& task) const { return task.asleep_until <= now_ && frozen_until_[task.id.rank] <= now_; }
  void ready(Task& task);
  void forget_watches(Task& task);
  Task* next();
  bool idle();
  bool wake_earliest(bool soon);
  void deliver_one(Task& task);
  Word own_choice(Word count, Word odds);

  Choices& choices_;
  FiberPool& fibers_;
  Mood mood_;
  Memory* memory_ = nullptr;
  Timeline* timeline_ = nullptr;
  std::vector<Task*> tasks_;
  std::vector<Task*> ready_;
  std::vector<std::vector<Task*>> watchers_;  // of a pack
  std::array<std::uint64_t, kMaxWorld> frozen_until_{};
  std::array<bool, kMaxWorld> dead_{};
  std::uint64_t now_ = 1;
  std::uint64_t steps_ = 0;
  std::uint32_t decisions_ = 0;
  bool stopped_ = false;
};

}  // namespace pcie_allreduce::fabric
