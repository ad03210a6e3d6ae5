// FP8 as e4m3: four bits of exponent, three of significand, no infinities. A norm may give it out in place of its own
// dtype: normed / scale, with one scale for all or one for every group of elements of a row.
#pragma once

#include "protocol/word.h"

namespace pcie_allreduce {

constexpr Word kGroup = 128;
constexpr float kLargestE4m3 = 448.0f;
constexpr Word kNanE4m3 = 0x7F;

// Rounded to nearest even; what is larger than the largest becomes that, infinities too.
PAR_INLINE Word e4m3(float value) {
  Word bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const Word magnitude = bits & 0x7FFF'FFFFu;
  if (magnitude > 0x7F80'0000u) return kNanE4m3;
  const Word sign = bits >> 24 & 0x80u;
  if (magnitude >= 0x43E0'0000u) return sign | 0x7Eu;
  if (magnitude >= 0x3C80'0000u) return sign | (magnitude - 0x3C00'0000u + 0x7'FFFFu + (magnitude >> 20 & 1u)) >> 20;
  // Below 2^-6: adding 2^14 leaves the subnormal's bits, rounded by the adder, at the bottom of the significand.
  float positive = 0;
  __builtin_memcpy(&positive, &magnitude, sizeof positive);
  positive += 16384.0f;
  __builtin_memcpy(&bits, &positive, sizeof bits);
  return sign | (bits - 0x4680'0000u);
}

struct Scale {
  float scale;
  float inverse;
};

// Of a group whose largest magnitude is this, NaN aside. Engines' kernels have the same least magnitude, and the same
// two roundings, for a group of zeros and for all others.
PAR_INLINE Scale scale_of_group(float largest) {
  const float least = 1e-10f;
  const float magnitude = largest > least ? largest : least;
  return {magnitude * (1.0f / kLargestE4m3), kLargestE4m3 / magnitude};
}

}  // namespace pcie_allreduce
