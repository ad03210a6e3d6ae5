// Input by shards: a lane has the same place in every shard, and needs all of them before its first store.
#pragma once

#include "protocol/take.h"

namespace pcie_allreduce {

// Unit i of the shard of each owner. All are loaded before any is used, so that they cost one latency and not one a
// shard; what lies behind the end stays as it is.
template <int kHops, class Machine, class Unit = typename Machine::Unit>
PAR_INLINE void read_shards(Machine& machine, const Request& request, const Word (&owner)[kHops], Word shard, Word i,
                            Unit (&into)[kHops]) {
  const Word units = request.units<Unit>();
  if (i >= shard) return;
  PAR_UNROLL
  for (Word hop = 0; hop < kHops; ++hop) {
    const Word at = owner[hop] * shard + i;
    if (at < units) into[hop] = machine.read(request, at);
  }
}

}  // namespace pcie_allreduce
