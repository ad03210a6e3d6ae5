// Where the kernel puts a process's memory: near to the processor that first asks for it.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace pcie_allreduce::host {

// Of a list as the kernel writes it: "0-2,8" is 0, 1, 2 and 8.
std::vector<int> listed(const std::string& list);

// The processors of a NUMA node; none where the kernel tells of no such node, as of -1.
std::vector<int> processors_of(int node);

// While it lives, this thread runs on some of the given processors, and what it takes lies near to them; then where it
// ran before. Without those, or where it may run on none of them, nothing changes. (A container may refuse the calls
// that place memory by node; these none refuses.)
class RunsOn {
 public:
  explicit RunsOn(const std::vector<int>& processors);
  ~RunsOn();
  RunsOn(const RunsOn&) = delete;
  RunsOn& operator=(const RunsOn&) = delete;

 private:
  cpu_set_t before_;
  bool moved_ = false;
};

}  // namespace pcie_allreduce::host
