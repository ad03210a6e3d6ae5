// A lane's own stack. ucontext makes it; from then on lanes are switched by _setjmp and _longjmp, because swapcontext
// asks the kernel for the signal mask each time and a schedule switches ten thousand times.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace pcie_allreduce::fabric {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(std::function<void()> body);
  void enter();  // from outside: runs the body until it leaves or ends
  void leave();  // from inside
  bool idle() const { return idle_; }

 private:
  struct Contexts;
  static void loop(unsigned high, unsigned low);

  std::unique_ptr<Contexts> contexts_;
  std::unique_ptr<char[]> stack_;
  std::function<void()> body_;
  bool made_ = false;
  bool idle_ = true;
};

// Stacks are used again, also those of lanes that were abandoned in the middle of a call.
class FiberPool {
 public:
  Fiber* take();
  void give(Fiber* fiber) { free_.push_back(fiber); }

 private:
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> free_;
};

}  // namespace pcie_allreduce::fabric
