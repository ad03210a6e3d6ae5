#include "fabric/scheduler.h"

#include <algorithm>

namespace pcie_allreduce::fabric {
namespace {

// What may happen at an access, with its share.
enum class Act { kNothing, kDeliver, kDeliverMany, kSwitch, kStarve, kFreeze };
constexpr Act kActs[] = {Act::kNothing,     Act::kDeliver, Act::kDeliver, Act::kDeliver, Act::kDeliver, Act::kDeliver,
                         Act::kDeliverMany, Act::kSwitch,  Act::kSwitch,  Act::kSwitch,  Act::kSwitch,  Act::kSwitch,
                         Act::kSwitch,      Act::kStarve,  Act::kStarve,  Act::kFreeze};
constexpr Word kActCount = sizeof kActs / sizeof kActs[0];
constexpr Word kAlways = 256;
constexpr std::uint64_t kSoon = 1 << 20;  // far below every deadline

thread_local Task* running = nullptr;  // a fiber never moves to another thread

std::uint64_t key(const LaneId& id, std::uint32_t decision) {
  const Word lane = Word{id.rank} << 24 | Word{id.call} << 16 | Word{id.block} << 8 | id.thread;
  return std::uint64_t{lane} << 32 | decision;
}

}  // namespace

Task* Scheduler::current() { return running; }

Scheduler::~Scheduler() {
  for (Task* task : tasks_) {
    if (task->fiber != nullptr) fibers_.give(task->fiber);
  }
}

void Scheduler::attach(Memory& memory, Timeline* timeline) {
  memory_ = &memory;
  timeline_ = timeline;
  watchers_.resize(memory.packs());
}

void Scheduler::add(Task& task, std::function<void()> body) {
  tasks_.push_back(&task);
  task.fiber = fibers_.take();
  task.fiber->start(std::move(body));
  if (choose(task, 2, mood_.event) != 0) task.asleep_until = now_ + (std::uint64_t{1} << (3 + any(task, 9)));
  ready(task);
}

void Scheduler::ready(Task& task) {
  task.state = Task::State::kReady;
  ready_.push_back(&task);
}

bool Scheduler::run(std::uint64_t steps) {
  while (!stopped_ && steps_ < steps) {
    Task* task = next();
    if (task == nullptr) {
      if (!idle()) return true;
      continue;
    }
    task->state = Task::State::kRunning;
    running = task;
    task->fiber->enter();
    if (task->fiber->idle()) {
      task->state = Task::State::kGone;
      forget_watches(*task);
      fibers_.give(task->fiber);
      task->fiber = nullptr;
    }
  }
  return stopped_;
}

Task* Scheduler::next() {
  Word count = 0;
  for (const Task* task : ready_) count += eligible(*task);
  if (count == 0) return nullptr;
  Word skip = own_choice(count, mood_.shuffle);
  const auto chosen =
      std::find_if(ready_.begin(), ready_.end(), [&](const Task* task) { return eligible(*task) && skip-- == 0; });
  Task* task = *chosen;
  ready_.erase(chosen);
  return task;
}

// Nobody can go on: what is in flight arrives now, then time passes. False: nothing will ever happen again.
bool Scheduler::idle() {
  if (memory_->in_flight() == 0) return wake_earliest(false);
  if (own_choice(2, 64) != 0 && wake_earliest(true)) return true;
  const Word count = static_cast<Word>(memory_->in_flight());
  Word which = own_choice(count + 1, kAlways);
  if (which == 0) {  // the harmless one: what was not to be held back
    while (which + 1 < count && memory_->held(which)) ++which;
    memory_->deliver(which);
  } else {
    memory_->deliver(which - 1);
  }
  return true;
}

bool Scheduler::wake_earliest(bool soon) {
  constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::uint64_t earliest = kNever;
  for (const Task* task : ready_) {
    earliest = std::min(earliest, std::max(task->asleep_until, frozen_until_[task->id.rank]));
  }
  if (!soon) {
    for (const Task* task : tasks_) {
      if (task->state == Task::State::kPolling) earliest = std::min(earliest, task->deadline);
    }
  }
  if (earliest == kNever || (soon && earliest > now_ + kSoon)) return false;
  now_ = std::max(now_, earliest);
  for (Task* task : tasks_) {
    if (task->state == Task::State::kPolling && task->deadline <= now_) ready(*task);
  }
  return true;
}

void Scheduler::access(Task& task) {
  ++now_;
  ++steps_;
  const Act act = kActs[choose(task, kActCount, mood_.event)];
  if (act == Act::kDeliver) {
    deliver_one(task);
  } else if (act == Act::kDeliverMany) {
    for (Word left = 1 + any(task, 16); left > 0; --left) deliver_one(task);
  } else if (act != Act::kNothing) {
    if (act == Act::kStarve) task.asleep_until = now_ + (std::uint64_t{1} << (3 + any(task, 9)));
    if (act == Act::kFreeze) freeze(task.id.rank, now_ + (std::uint64_t{1} << (5 + any(task, 9))));
    if (timeline_ != nullptr && act != Act::kSwitch) {
      const bool starves = act == Act::kStarve;
      timeline_->add({.time = now_,
                      .lane = task.id,
                      .what = starves ? Happened::kStarves : Happened::kFreezes,
                      .note = starves ? task.asleep_until : frozen_until_[task.id.rank]});
    }
    pause(task);
  }
}

void Scheduler::pause(Task& task) {
  ready(task);
  give_up(task);
}

void Scheduler::deliver_one(Task& task) {
  const Word count = static_cast<Word>(memory_->in_flight());
  if (count == 0) return;
  const Word which = any(task, count);
  if (memory_->held(which) && any(task, 16) != 0) return;
  memory_->deliver(which);
}

void Scheduler::give_up(Task& task) { task.fiber->leave(); }

void Scheduler::block(Task& task) {
  task.state = Task::State::kBlocked;
  give_up(task);
}

void Scheduler::unblock(Task& task) {
  if (task.state == Task::State::kBlocked) ready(task);
}

void Scheduler::watch(Task& task, Word word) {
  const Word pack = word / 4;
  if (std::find(task.watched.begin(), task.watched.end(), pack) != task.watched.end()) return;
  task.watched.push_back(pack);
  watchers_[pack].push_back(&task);
}

void Scheduler::forget_watches(Task& task) {
  for (const Word pack : task.watched) std::erase(watchers_[pack], &task);
  task.watched.clear();
}

void Scheduler::arrived(Word word, bool late) {
  if (late && timeline_ != nullptr) {
    timeline_->add({.time = now_,
                    .lane = memory_->origin(word),
                    .what = Happened::kArrives,
                    .word = word,
                    .value = {memory_->delivered(word)}});
  }
  for (Task* task : watchers_[word / 4]) {
    task->fresh = true;
    if (task->state == Task::State::kPolling) ready(*task);
  }
}

// A lane that has looked at everything, its deadline and the abort words too, and would see the same again, sleeps
// until one of them changes: a poll that cannot find anything is not worth simulating.
void Scheduler::poll(Task& task, std::uint64_t deadline, bool may_sleep) {
  if (may_sleep && !task.fresh) {
    task.state = Task::State::kPolling;
    task.deadline = deadline;
  } else {
    ready(task);
  }
  give_up(task);
  if (may_sleep) task.fresh = false;
  forget_watches(task);
}

void Scheduler::kill(Word rank) {
  dead_[rank] = true;
  std::erase_if(ready_, [&](const Task* task) { return task->id.rank == rank; });
  for (Task* task : tasks_) {
    if (task->id.rank == rank && task->state != Task::State::kGone) {
      forget_watches(*task);
      task->state = Task::State::kGone;
    }
  }
}

Word Scheduler::choose(Task& task, Word count, Word odds) {
  return choices_.pick(key(task.id, task.decisions++), count, odds);
}

Word Scheduler::any(Task& task, Word count) {
  const Word value = choose(task, count + 1, kAlways);
  return value == 0 ? 0 : value - 1;
}

Word Scheduler::own_choice(Word count, Word odds) { return choices_.pick(key(kFill, decisions_++), count, odds); }

}  // namespace pcie_allreduce::fabric
