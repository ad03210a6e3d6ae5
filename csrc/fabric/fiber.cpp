#undef _FORTIFY_SOURCE  // it would refuse a _longjmp to another stack
#include "fabric/fiber.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>

namespace pcie_allreduce::fabric {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

}  // namespace

struct Fiber::Contexts {
  ucontext_t first;
  jmp_buf inside;
  jmp_buf outside;
};

Fiber::Fiber() : contexts_(new Contexts), stack_(new char[kStackBytes]) {}
Fiber::~Fiber() = default;

// A body that was left behind never runs again: nothing on its stack needs a destructor.
void Fiber::start(std::function<void()> body) {
  body_ = std::move(body);
  if (!idle_) made_ = false;
  idle_ = false;
}

void Fiber::enter() {
  if (_setjmp(contexts_->outside) != 0) return;
  if (made_) _longjmp(contexts_->inside, 1);
  made_ = true;
  getcontext(&contexts_->first);
  contexts_->first.uc_stack.ss_sp = stack_.get();
  contexts_->first.uc_stack.ss_size = kStackBytes;
  contexts_->first.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&contexts_->first, reinterpret_cast<void (*)()>(&Fiber::loop), 2,
              static_cast<unsigned>(std::uint64_t{self} >> 32), static_cast<unsigned>(self));
  setcontext(&contexts_->first);
}

void Fiber::leave() {
  if (_setjmp(contexts_->inside) == 0) _longjmp(contexts_->outside, 1);
}

void Fiber::loop(unsigned high, unsigned low) {
  Fiber* self = reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>((std::uint64_t{high} << 32) | low));
  for (;;) {
    self->body_();
    self->idle_ = true;
    self->leave();
  }
}

Fiber* FiberPool::take() {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Fiber>());
    free_.push_back(all_.back().get());
  }
  Fiber* fiber = free_.back();
  free_.pop_back();
  return fiber;
}

}  // namespace pcie_allreduce::fabric
