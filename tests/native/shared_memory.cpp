#include "host/shared_memory.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include "expect.h"

namespace {

using pcie_allreduce::host::SharedMemory;
using pcie_allreduce::test::expect;

constexpr std::size_t kBytes = 8192;

// A data loader's worker, say: forked while the rank took part, and alive after it.
void a_forked_child_keeps_nobody_present() {
  SharedMemory own = SharedMemory::create(kBytes);
  const SharedMemory peers = SharedMemory::open(own.name(), kBytes);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  expect(!peers.creator_gone(), "it has not closed yet");
  own.close();
  expect(peers.creator_gone(), "it has closed, and its child lives");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

void a_child_does_not_close_for_its_parent() {
  SharedMemory own = SharedMemory::create(kBytes);
  const SharedMemory peers = SharedMemory::open(own.name(), kBytes);
  const pid_t child = fork();
  if (child == 0) {
    own.close();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  expect(!peers.creator_gone(), "the parent still takes part");
}

}  // namespace

int main() {
  a_forked_child_keeps_nobody_present();
  a_child_does_not_close_for_its_parent();
  return pcie_allreduce::test::result();
}
