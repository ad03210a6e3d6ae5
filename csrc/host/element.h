// The element types on a CPU, four 32-bit lanes at a time: the two 16-bit values of a word are widened into an even and
// an odd vector, so that no lane ever has to move. Integer arithmetic and float32 addition only: no instruction set
// beyond the platform's baseline, and no contraction that would round differently from the GPU.
#pragma once

#include <cstring>

#include "protocol/word.h"

namespace pcie_allreduce::host {

using Words = std::uint32_t __attribute__((vector_size(16), may_alias));
using Floats = float __attribute__((vector_size(16), may_alias));

PAR_INLINE Words words_of(const Pack& pack) {
  Words words;
  std::memcpy(&words, &pack, sizeof words);
  return words;
}
PAR_INLINE Pack pack_of(Words words) {
  Pack pack;
  std::memcpy(&pack, &words, sizeof pack);
  return pack;
}
PAR_INLINE Floats as_floats(Words words) { return reinterpret_cast<Floats>(words); }
PAR_INLINE Words as_words(Floats floats) { return reinterpret_cast<Words>(floats); }
PAR_INLINE Words choose(Words mask, Words yes, Words no) { return (mask & yes) | (~mask & no); }
PAR_INLINE Words every(Word word) { return Words{word, word, word, word}; }
PAR_INLINE Words magnitude(Words bits) { return bits & 0x7FFF'FFFFu; }
PAR_INLINE Words is_nan(Words bits) { return reinterpret_cast<Words>(magnitude(bits) > 0x7F80'0000u); }

struct Float32 {
  static constexpr Word kBytes = 4;
  struct Sum {
    Floats value{};
  };
  PAR_INLINE static void add(Sum& sum, const Pack& pack) { sum.value += as_floats(words_of(pack)); }
  PAR_INLINE static Pack rounded(const Sum& sum) {
    const Words bits = as_words(sum.value);
    return pack_of(choose(is_nan(bits), every(0x7FFF'FFFFu), bits));
  }
  PAR_INLINE static Pack nan() { return pack_of(every(0x7FFF'FFFFu)); }
};

// Two 16-bit values a word. Half gives `widen` (value in the low 16 bits -> float32) and `narrow` (float32 -> value in
// the low 16 bits, round to nearest even, any NaN to 0x7FFF).
template <class Half>
struct Pairs {
  static constexpr Word kBytes = 2;
  struct Sum {
    Floats even{}, odd{};
  };
  PAR_INLINE static void add(Sum& sum, const Pack& pack) {
    const Words words = words_of(pack);
    sum.even += Half::widen(words & 0xFFFFu);
    sum.odd += Half::widen(words >> 16);
  }
  // A sum that underflows to -0.0 becomes +0.0: a zero result has one bit pattern, and it is never EMPTY.
  PAR_INLINE static Words one_zero(Words half) {
    const Words zero = reinterpret_cast<Words>((half & 0x7FFFu) == 0u);
    return half & ~zero;
  }
  PAR_INLINE static Pack rounded(const Sum& sum) {
    return pack_of(one_zero(Half::narrow(sum.even)) | (one_zero(Half::narrow(sum.odd)) << 16));
  }
  PAR_INLINE static Pack nan() { return pack_of(every(0x7FFF'7FFFu)); }
};

struct BrainHalf {
  PAR_INLINE static Floats widen(Words half) { return as_floats(half << 16); }
  PAR_INLINE static Words narrow(Floats value) {
    const Words bits = as_words(value);
    const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return choose(is_nan(bits), every(0x7FFFu), rounded);
  }
};
using BFloat16 = Pairs<BrainHalf>;

struct IeeeHalf {
  PAR_INLINE static Floats widen(Words half) {
    const Words sign = (half & 0x8000u) << 16;
    const Words shifted = (half & 0x7FFFu) << 13;
    // The exponent moves by 112 through a multiplication, which also normalises subnormals.
    const Words scaled = as_words(as_floats(shifted) * as_floats(every(0x7780'0000u)));
    const Words special = reinterpret_cast<Words>((half & 0x7FFFu) >= 0x7C00u);  // infinities and NaNs
    return as_floats(sign | choose(special, shifted | 0x7F80'0000u, scaled));
  }
  PAR_INLINE static Words narrow(Floats value) {
    const Words bits = as_words(value);
    const Words positive = magnitude(bits);
    const Words normal = (positive - 0x3800'0000u + 0xFFFu + ((positive >> 13) & 1u)) >> 13;
    // Below 2^-14: adding 0.5 leaves the subnormal's bits, rounded by the adder, at the bottom of the significand.
    const Words subnormal = as_words(as_floats(positive) + as_floats(every(0x3F00'0000u))) - 0x3F00'0000u;
    Words half = choose(reinterpret_cast<Words>(positive < 0x3880'0000u), subnormal, normal);
    half = choose(reinterpret_cast<Words>(positive >= 0x4780'0000u - 0x1000u), every(0x7C00u), half);
    return choose(is_nan(bits), every(0x7FFFu), half | ((bits >> 16) & 0x8000u));
  }
};
using Float16 = Pairs<IeeeHalf>;

}  // namespace pcie_allreduce::host
