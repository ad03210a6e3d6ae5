// What every lane of every algorithm is given: a plain struct, so that a kernel takes it as its one argument and a CUDA
// graph may freeze it. Whatever changes from call to call lies in the rank's BlockState instead.
#pragma once

#include "protocol/wait.h"

namespace pcie_allreduce {

struct Channel {
  char* slab[kMaxWorld];  // every rank's slab as this rank sees it; [rank] is its own
  FaultRecord* record;
  Word rank;
  Word world;
  Word area_packs;
  std::uint64_t timeout_ns;
  std::uint64_t warmup_timeout_ns;
};

struct Request {
  const void* in;
  void* out;
  Word bytes;
  Word kind;         // of the signature
  bool captured;     // it runs as part of a graph replay: the warm-up is over
  // In whole units, the machine's step: the padding is zero, is sent, and is awaited like everything else.
  template <class Unit = Pack>
  PAR_INLINE Word units() const {
    return (bytes + sizeof(Unit) - 1) / sizeof(Unit);
  }
};

// One lane's part of [0, end).
struct Range {
  Word first;
  Word end;
  Word step;
};

// What a lane reads at the start of a call, before it may store anything.
struct Call {
  Word number;
  Word phase;
  Word stale;  // packs that the call to re-arm used
  bool failed;
};

}  // namespace pcie_allreduce
