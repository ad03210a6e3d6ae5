#include "host/placement.h"

#include <fstream>
#include <sstream>

namespace pcie_allreduce::host {

std::vector<int> listed(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream ends(range);
    int first = 0;
    if (!(ends >> first)) continue;
    int last = first;
    if (char dash = 0; ends >> dash) ends >> last;
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::vector<int> processors_of(int node) {
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
  std::string list;
  std::getline(file, list);
  return listed(list);
}

RunsOn::RunsOn(const std::vector<int>& processors) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int processor : processors) {
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_SET(processor, &wanted);
  }
  moved_ = ::sched_getaffinity(0, sizeof before_, &before_) == 0 && ::sched_setaffinity(0, sizeof wanted, &wanted) == 0;
}

RunsOn::~RunsOn() {
  if (moved_) ::sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace pcie_allreduce::host
