// FP8 on CPU ranks, an element at a time: they test what GPUs do, and are not measured by it.
#pragma once

#include <cstring>
#include <limits>

#include "host/unit.h"
#include "protocol/norm.h"

namespace pcie_allreduce::host::PAR_ISA {

// A group, or what a row has left. `first`: of its elements, among those of all rows.
inline void quantise(const Norm& norm, const float* normed, Word first, Word count) {
  float inverse = 1.0f;
  if (norm.fp8 == Fp8::kGroups) {
    float largest = 0;
    for (Word e = 0; e < count; ++e) {
      const float magnitude = normed[e] < 0 ? -normed[e] : normed[e];
      if (magnitude > largest) largest = magnitude;  // which a NaN is not
    }
    const Scale scale = scale_of_group(largest);
    norm.scales[first / kGroup] = scale.scale;
    inverse = scale.inverse;
  } else {
    inverse /= *norm.scales;
  }
  unsigned char* codes = static_cast<unsigned char*>(norm.normed) + first;
  for (Word e = 0; e < count; ++e) codes[e] = static_cast<unsigned char>(e4m3(normed[e] * inverse + 0.0f));
}

inline void quantise_nan(const Norm& norm, Word count) {
  std::memset(norm.normed, static_cast<int>(kNanE4m3), count);
  for (Word group = 0; norm.fp8 == Fp8::kGroups && group < count / kGroup; ++group) {
    norm.scales[group] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace pcie_allreduce::host::PAR_ISA
