// All-reduce, residual and RMSNorm in one call: what the algorithms do not need to know of it. They sum and round once,
// after the residual was added; a machine adds it, keeps the rows, and normalises them when all of a row is there.
#pragma once

#include <stdexcept>
#include <string>

#include "protocol/dispatch.h"
#include "protocol/e4m3.h"

namespace pcie_allreduce {

constexpr Word kMaxHidden = 16384;

enum class Fp8 : Word { kNone, kTensor, kGroups };

struct Norm {
  const void* residual;
  const void* weight;
  void* normed;  // of the dtype, or FP8
  float eps;
  float weight_bias;
  Fp8 fp8;
  float* scales;  // kTensor: one, which is read; kGroups: one for every kGroup elements, which are written
};

inline Word element_bytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

// Packs of a group.
PAR_INLINE constexpr Word group_packs(Word element_bytes) { return kGroup * element_bytes / Word{sizeof(Pack)}; }

// Rows are whole packs, so that no pack belongs to two of them, and whole groups where groups have scales.
inline void require_rows(Word bytes, Word hidden, Dtype dtype, Fp8 fp8) {
  if (hidden == 0 || hidden % 8 != 0 || hidden > kMaxHidden || bytes % (hidden * element_bytes(dtype)) != 0) {
    throw std::invalid_argument(std::to_string(bytes) + " bytes are no rows of " + std::to_string(hidden) +
                                " elements, a multiple of 8 up to " + std::to_string(kMaxHidden));
  }
  if (fp8 == Fp8::kGroups && hidden % kGroup != 0) {
    throw std::invalid_argument("rows of " + std::to_string(hidden) + " elements are no whole groups of " +
                                std::to_string(kGroup));
  }
}

}  // namespace pcie_allreduce
