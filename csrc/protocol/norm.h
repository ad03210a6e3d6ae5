// All-reduce, residual and RMSNorm in one call: what the algorithms do not need to know of it. They sum and round once,
// after the residual was added; a machine adds it, keeps the rows, and normalises them when all of a row is there.
#pragma once

#include <stdexcept>
#include <string>

#include "protocol/dispatch.h"

namespace pcie_allreduce {

constexpr Word kMaxHidden = 16384;

struct Norm {
  const void* residual;
  const void* weight;
  void* normed;
  float eps;
  float weight_bias;
};

inline Word element_bytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

// Rows are whole packs, so that no pack belongs to two of them.
inline void require_rows(Word bytes, Word hidden, Dtype dtype) {
  if (hidden == 0 || hidden % 8 != 0 || hidden > kMaxHidden || bytes % (hidden * element_bytes(dtype)) != 0) {
    throw std::invalid_argument(std::to_string(bytes) + " bytes are no rows of " + std::to_string(hidden) +
                                " elements, a multiple of 8 up to " + std::to_string(kMaxHidden));
  }
}

}  // namespace pcie_allreduce
