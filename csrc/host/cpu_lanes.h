// The CPU's lanes. All-reduce is compiled once for every instruction set, and which one runs is decided when the module
// is loaded; what CPU ranks run to test what GPUs do is compiled once, and is fast enough.
#pragma once

#include "protocol/norm.h"

namespace pcie_allreduce::host {

// What the host knows beside the mailboxes, asked for now and then while a lane waits.
class Watch {
 public:
  virtual ~Watch() = default;
  // Why waiting is pointless: a reason and whose fault it is, or kNone.
  virtual Fault look() = 0;
};

struct CpuLanes {
  void (*all_reduce)(const Channel& channel, const Request& request, bool crowded, Watch& watch);
  void (*exchange)(const Channel& channel, Word* verdict, bool crowded, Watch& watch);
  const char* name;
};

namespace baseline {
extern const CpuLanes lanes;
}
#if defined(__x86_64__)
namespace avx2 {
extern const CpuLanes lanes;
}
#endif

void run_staged(const Channel& channel, const Request& request, bool crowded, Watch& watch);
void run_chunks(const Channel& channel, const Request& request, bool crowded, Watch& watch);
void run_pull(const Channel& channel, const Request& request, bool crowded, Watch& watch);
void run_fused(const Channel& channel, const Request& request, const Norm& norm, bool crowded, Watch& watch);

inline const CpuLanes& cpu_lanes() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return avx2::lanes;
#endif
  return baseline::lanes;
}

}  // namespace pcie_allreduce::host
