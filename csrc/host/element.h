// The element types on a CPU, a cache line at a time: the two 16-bit values of a word are widened into an even and an
// odd vector, so that no lane ever has to move. Integer arithmetic and float32 addition only, without contraction, so
// that every instruction set that this is compiled for gives the same bits, and they are the GPU's.
#pragma once

#include "host/unit.h"

namespace pcie_allreduce::host::PAR_ISA {

PAR_INLINE Floats as_floats(Words words) { return reinterpret_cast<Floats>(words); }
PAR_INLINE Words as_words(Floats floats) { return reinterpret_cast<Words>(floats); }
PAR_INLINE Words choose(Words mask, Words yes, Words no) { return (mask & yes) | (~mask & no); }
PAR_INLINE Words every(Word word) { return Words{} + word; }
PAR_INLINE Words magnitude(Words bits) { return bits & 0x7FFF'FFFFu; }
// Signed comparisons of non-negative values: x86 has no unsigned ones.
PAR_INLINE Words above(Words value, Word limit) {
  return reinterpret_cast<Words>(reinterpret_cast<Ints>(value) > static_cast<int>(limit));
}
PAR_INLINE Words is_nan(Words bits) { return above(magnitude(bits), 0x7F80'0000u); }

PAR_INLINE Unit filled(Words words) {
  Unit unit;
  for (int p = 0; p < kParts; ++p) unit.part[p] = words;
  return unit;
}

// A partial sum in float32, as it travels between islands: kPartialUnits units.
struct Float32 {
  static constexpr int kPartialUnits = 1;
  struct Sum {
    Floats value[kParts]{};
  };
  PAR_INLINE static void add(Sum& sum, const Unit& unit) {
    for (int p = 0; p < kParts; ++p) sum.value[p] += as_floats(unit.part[p]);
  }
  PAR_INLINE static Unit rounded(const Sum& sum) {
    Unit unit;
    for (int p = 0; p < kParts; ++p) {
      const Words bits = as_words(sum.value[p]);
      unit.part[p] = choose(is_nan(bits), every(0x7FFF'FFFFu), bits);
    }
    return unit;
  }
  PAR_INLINE static void partial(const Sum& sum, Unit (&parts)[kPartialUnits]) {
    for (int p = 0; p < kParts; ++p) parts[0].part[p] = as_words(sum.value[p]);
  }
  PAR_INLINE static void add_partial(Sum& sum, const Unit (&parts)[kPartialUnits]) { add(sum, parts[0]); }
  PAR_INLINE static Unit nan() { return filled(every(0x7FFF'FFFFu)); }
};

// Two 16-bit values a word. Half gives `widen` (value in the low 16 bits -> float32) and `narrow` (float32 -> value in
// the high 16 bits, round to nearest even, any NaN to 0x7FFF, the low 16 bits zero).
template <class Half>
struct Pairs {
  static constexpr int kPartialUnits = 2;
  struct Sum {
    Floats even[kParts]{}, odd[kParts]{};
  };
  PAR_INLINE static void add(Sum& sum, const Unit& unit) {
    for (int p = 0; p < kParts; ++p) {
      sum.even[p] += Half::widen_low(unit.part[p]);
      sum.odd[p] += Half::widen_high(unit.part[p]);
    }
  }
  PAR_INLINE static Unit rounded(const Sum& sum) {
    Unit unit;
    for (int p = 0; p < kParts; ++p)
      unit.part[p] = one_zero((Half::narrow(sum.even[p]) >> 16) | Half::narrow(sum.odd[p]));
    return unit;
  }
  PAR_INLINE static void partial(const Sum& sum, Unit (&parts)[kPartialUnits]) {
    for (int p = 0; p < kParts; ++p) {
      parts[0].part[p] = as_words(sum.even[p]);
      parts[1].part[p] = as_words(sum.odd[p]);
    }
  }
  PAR_INLINE static void add_partial(Sum& sum, const Unit (&parts)[kPartialUnits]) {
    for (int p = 0; p < kParts; ++p) {
      sum.even[p] += as_floats(parts[0].part[p]);
      sum.odd[p] += as_floats(parts[1].part[p]);
    }
  }
  PAR_INLINE static Unit nan() { return filled(every(0x7FFF'7FFFu)); }

 private:
  // A sum that underflows to -0.0 becomes +0.0: a zero result has one bit pattern, and it is never EMPTY.
  PAR_INLINE static Words one_zero(Words words) {
    const Shorts shorts = reinterpret_cast<Shorts>(words);
    return reinterpret_cast<Words>(shorts & reinterpret_cast<Shorts>((shorts & 0x7FFF) != 0));
  }
};

struct BrainHalf {
  PAR_INLINE static Floats widen_low(Words words) { return as_floats(words << 16); }
  PAR_INLINE static Floats widen_high(Words words) { return as_floats(words & 0xFFFF'0000u); }
  PAR_INLINE static Words narrow(Floats value) {
    const Words bits = as_words(value);
    const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF'0000u;
    return choose(is_nan(bits), every(0x7FFF'0000u), rounded);
  }
};
using BFloat16 = Pairs<BrainHalf>;

struct IeeeHalf {
  PAR_INLINE static Floats widen(Words half) {
    const Words sign = (half & 0x8000u) << 16;
    const Words shifted = (half & 0x7FFFu) << 13;
    // The exponent moves by 112 through a multiplication, which also normalises subnormals.
    const Words scaled = as_words(as_floats(shifted) * as_floats(every(0x7780'0000u)));
    const Words special = above(half & 0x7FFFu, 0x7BFFu);  // infinities and NaNs
    return as_floats(sign | choose(special, shifted | 0x7F80'0000u, scaled));
  }
  PAR_INLINE static Floats widen_low(Words words) { return widen(words & 0xFFFFu); }
  PAR_INLINE static Floats widen_high(Words words) { return widen(words >> 16); }
  PAR_INLINE static Words narrow(Floats value) {
    const Words bits = as_words(value);
    const Words positive = magnitude(bits);
    const Words normal = (positive - 0x3800'0000u + 0xFFFu + ((positive >> 13) & 1u)) >> 13;
    // Below 2^-14: adding 0.5 leaves the subnormal's bits, rounded by the adder, at the bottom of the significand.
    const Words subnormal = as_words(as_floats(positive) + as_floats(every(0x3F00'0000u))) - 0x3F00'0000u;
    Words half = choose(above(positive, 0x387F'FFFFu), normal, subnormal);
    half = choose(above(positive, 0x477F'EFFFu), every(0x7C00u), half);  // from 65520 on it rounds to infinity
    half = half | ((bits >> 16) & 0x8000u);
    return choose(is_nan(bits), every(0x7FFFu), half) << 16;
  }
};
using Float16 = Pairs<IeeeHalf>;

struct Elements {
  using Float32 = PAR_ISA::Float32;
  using Float16 = PAR_ISA::Float16;
  using BFloat16 = PAR_ISA::BFloat16;
};

}  // namespace pcie_allreduce::host::PAR_ISA
