#include "host/placement.h"

#include <sched.h>

#include "expect.h"

namespace {

using namespace pcie_allreduce::host;
using pcie_allreduce::test::expect;

using Numbers = std::vector<int>;

Numbers allowed() {
  cpu_set_t set;
  expect(sched_getaffinity(0, sizeof set, &set) == 0, "nobody says where this thread may run");
  Numbers processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

void lists() {
  expect(listed("0-2,8") == Numbers{0, 1, 2, 8}, "a range and a number");
  expect(listed("5\n") == Numbers{5}, "a number, as the kernel ends it");
  expect(listed("0-1,14-15\n") == Numbers{0, 1, 14, 15}, "two ranges");
  expect(listed("").empty() && listed("\n").empty(), "nothing listed");
  expect(processors_of(-1).empty() && processors_of(1'000'000).empty(), "no such node");
}

void runs_there_and_back() {
  const Numbers before = allowed();
  {
    const RunsOn last({before.back()});
    expect(allowed() == Numbers{before.back()}, "may run on %d alone", before.back());
    expect(sched_getcpu() == before.back(), "runs on %d", sched_getcpu());
  }
  expect(allowed() == before, "is back");
  for (const Numbers& nowhere : {Numbers{}, Numbers{CPU_SETSIZE - 1}, Numbers{CPU_SETSIZE, -1}}) {
    const RunsOn scope(nowhere);
    expect(allowed() == before, "stays where it was");
  }
  expect(allowed() == before, "and is there still");
}

}  // namespace

int main() {
  lists();
  runs_there_and_back();
  return pcie_allreduce::test::result();
}
