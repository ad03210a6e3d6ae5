// make fabric SCHEDULES=n [SEED=s] [ALGORITHM=a] [FAULT=name]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "fabric/campaign.h"

namespace pcie_allreduce::fabric {
namespace {

int usage(const std::string& why) {
  std::fprintf(stderr, "fabric: %s\nfabric [SCHEDULES=n] [SEED=s] [ALGORITHM=a] [FAULT=name|list|all]\nalgorithms:",
               why.c_str());
  for (const Entry& entry : algorithms()) std::fprintf(stderr, " %s", entry.name);
  std::fprintf(stderr, "\n");
  return 2;
}

bool number(const std::string& text, std::uint64_t& value) {
  char* end = nullptr;
  value = std::strtoull(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0';
}

int list_faults() {
  for (const PlantedFault& fault : planted_faults()) std::printf("%-20s %s\n", fault.name, fault.what);
  return 0;
}

int run(int count, char** arguments) {
  std::map<std::string, std::string> given;
  for (int i = 1; i < count; ++i) {
    const char* equals = std::strchr(arguments[i], '=');
    if (equals == nullptr) return usage(std::string(arguments[i]) + " is not KEY=value");
    given[std::string(arguments[i], static_cast<std::size_t>(equals - arguments[i]))] = equals + 1;
  }
  Campaign campaign;
  for (const auto& [key, value] : given) {
    if (key == "SCHEDULES") {
      if (!number(value, campaign.schedules)) return usage("SCHEDULES=" + value + " is not a number");
    } else if (key == "SEED") {
      if (!number(value, campaign.first_seed)) return usage("SEED=" + value + " is not a number");
    } else if (key == "ALGORITHM") {
      const Entry* entry = find_algorithm(value);
      if (entry == nullptr) return usage("there is no algorithm " + value);
      campaign.algorithms = {entry};
    } else if (key == "FAULT") {
      if (value == "list") return list_faults();
      if (value == "all") continue;
      campaign.fault = find_fault(value);
      if (campaign.fault == nullptr) return usage("there is no fault " + value + "; FAULT=list prints them");
    } else {
      return usage(key + " means nothing here");
    }
  }
  return given.contains("FAULT") && given["FAULT"] == "all" ? find_all(campaign) : search(campaign);
}

}  // namespace
}  // namespace pcie_allreduce::fabric

int main(int count, char** arguments) { return pcie_allreduce::fabric::run(count, arguments); }
