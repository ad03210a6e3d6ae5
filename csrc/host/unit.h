// What a CPU lane moves at a time: a cache line, as two or four vectors of the width that this file is compiled for.
// Slots begin at whole lines, so a unit never reaches into another slot.
#pragma once

#include "protocol/mailbox.h"

// A namespace for each instruction set: the linker must never take one's function for the other's.
#if !defined(PAR_ISA)
#define PAR_ISA baseline
#endif

namespace pcie_allreduce::host::PAR_ISA {

#if defined(__AVX2__)
#define PAR_VECTOR vector_size(32), may_alias
#else
#define PAR_VECTOR vector_size(16), may_alias
#endif
using Words = std::uint32_t __attribute__((PAR_VECTOR));
using Ints = std::int32_t __attribute__((PAR_VECTOR));
using Shorts = std::int16_t __attribute__((PAR_VECTOR));
using Floats = float __attribute__((PAR_VECTOR));
using UnalignedWords = std::uint32_t __attribute__((PAR_VECTOR, aligned(1)));

constexpr int kParts = 64 / sizeof(Words);

struct alignas(64) Unit {
  Words part[kParts];
};
static_assert(sizeof(Unit) == 64 && kLinePacks * sizeof(Pack) % sizeof(Unit) == 0, "slots are made of whole units");

PAR_INLINE Unit encoded(const Unit& unit) {
  Unit result;
  for (int p = 0; p < kParts; ++p) result.part[p] = unit.part[p] & reinterpret_cast<Words>(unit.part[p] != kEmpty);
  return result;
}

PAR_INLINE bool arrived(const Unit& unit) {
  Words empty = reinterpret_cast<Words>(unit.part[0] == kEmpty);
  for (int p = 1; p < kParts; ++p) empty |= reinterpret_cast<Words>(unit.part[p] == kEmpty);
  std::uint64_t any = 0;
  for (std::size_t w = 0; w < sizeof(Words) / 8; ++w) {
    any |= reinterpret_cast<std::uint64_t __attribute__((PAR_VECTOR))>(empty)[w];
  }
  return any == 0;
}

}  // namespace pcie_allreduce::host::PAR_ISA
