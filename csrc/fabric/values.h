// Inputs and expected sums as bits, without the element types that are being checked.
#pragma once

#include <bit>
#include <cstring>

#include "fabric/scenario.h"

namespace pcie_allreduce::fabric {

inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return Random(a * 0x9E37'79B9'7F4A'7C15u + b).next(); }

inline Word integer_bits(int value, Dtype dtype) {
  if (value == 0) return 0;
  const Word sign = value < 0 ? 1 : 0;
  const Word magnitude = static_cast<Word>(value < 0 ? -value : value);
  const Word exponent = static_cast<Word>(std::bit_width(magnitude)) - 1;
  const Word fraction = (magnitude << (23 - exponent)) & 0x007F'FFFFu;
  if (dtype == Dtype::kFloat16) return sign << 15 | (exponent + 15) << 10 | fraction >> 13;
  const Word single = sign << 31 | (exponent + 127) << 23 | fraction;
  return dtype == Dtype::kBFloat16 ? single >> 16 : single;
}

inline int input_integer(std::uint64_t hash) { return hash % 8 == 0 ? 0 : static_cast<int>(hash / 8 % 31) - 15; }

inline Word element_at(const Pack* packs, Word element, Dtype dtype) {
  const char* bytes = reinterpret_cast<const char*>(packs);
  if (element_bytes(dtype) == 4) {
    Word word;
    std::memcpy(&word, bytes + element * 4, 4);
    return word;
  }
  std::uint16_t half;
  std::memcpy(&half, bytes + element * 2, 2);
  return half;
}

inline Word negative_zero(Dtype dtype) { return dtype == Dtype::kFloat32 ? 0x8000'0000u : 0x8000u; }
inline Word nan_bits(Dtype dtype) { return dtype == Dtype::kFloat32 ? 0x7FFF'FFFFu : 0x7FFFu; }

}  // namespace pcie_allreduce::fabric
