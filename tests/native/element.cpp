// Sums on a CPU: widened exactly, added in float32 in the given order, rounded once to nearest even; one bit pattern
// for every NaN and for every zero. Checked against arithmetic that shares nothing with it: doubles, and a search for
// the nearest value.
#include "host/element.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "expect.h"

namespace pcie_allreduce::test {
namespace {

using host::baseline::BFloat16;
using host::baseline::Float16;
using host::baseline::Float32;
using host::baseline::Unit;

constexpr int kUnitBytes = sizeof(Unit);

struct Half {
  int exponent_bits, fraction_bits;
  double value(Word bits) const {  // of a finite one
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const Word exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1u);
    const Word fraction = bits & ((1u << fraction_bits) - 1u);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                      : std::ldexp(fraction + (1u << fraction_bits), static_cast<int>(exponent) - bias - fraction_bits);
    return bits >> 15 & 1u ? -magnitude : magnitude;
  }
  Word infinity() const { return ((1u << exponent_bits) - 1u) << fraction_bits; }
  bool nan(Word bits) const { return (bits & 0x7FFFu) > infinity(); }
  // The nearest value to a float, ties to even, by bisection over the magnitudes, which are in the order of their bits.
  Word nearest(float from) const {
    if (std::isnan(from)) return 0x7FFF;
    const double magnitude = std::fabs(static_cast<double>(from));
    Word low = 0;
    Word high = infinity();
    while (high - low > 1) {
      const Word middle = (low + high) / 2;
      (value(middle) <= magnitude ? low : high) = middle;
    }
    const double step = std::ldexp(
        1.0, static_cast<int>((infinity() - 1) >> fraction_bits) - ((1 << (exponent_bits - 1)) - 1) - fraction_bits);
    const double above = high == infinity() ? value(infinity() - 1) + step : value(high);
    const double down = magnitude - value(low);
    const double up = above - magnitude;
    const Word rounded = down < up || (down == up && low % 2 == 0) ? low : high;
    return rounded == 0 ? 0 : rounded | (std::signbit(from) ? 0x8000u : 0u);
  }
};
constexpr Half kIeee{5, 10};
constexpr Half kBrain{8, 7};

template <class Element>
void set(Unit& unit, int index, Word bits) {
  constexpr int kBytes = std::is_same_v<Element, Float32> ? 4 : 2;
  std::memcpy(reinterpret_cast<char*>(&unit) + index * kBytes, &bits, kBytes);
}
template <class Element>
Word get(const Unit& unit, int index) {
  constexpr int kBytes = std::is_same_v<Element, Float32> ? 4 : 2;
  Word bits = 0;
  std::memcpy(&bits, reinterpret_cast<const char*>(&unit) + index * kBytes, kBytes);
  return bits;
}

float as_float(const Half& half, Word bits) {
  if (half.nan(bits)) return std::numeric_limits<float>::quiet_NaN();
  if ((bits & 0x7FFFu) == half.infinity()) return bits >> 15 ? -INFINITY : INFINITY;
  return static_cast<float>(half.value(bits));
}

// Every half alone, in both halves of a word.
template <class Element>
void alone(const Half& half, const char* name) {
  for (Word bits = 0; bits < 0x1'0000; ++bits) {
    Unit unit{};
    set<Element>(unit, 4, bits);
    set<Element>(unit, 7, bits);
    typename Element::Sum sum;
    Element::add(sum, unit);
    const Unit rounded = Element::rounded(sum);
    const Word expected = half.nan(bits) ? 0x7FFFu : ((bits & 0x7FFFu) == 0 ? 0 : bits);
    for (const int index : {4, 7}) {
      const Word got = get<Element>(rounded, index);
      expect(got == expected, "%s %04x alone gives %04x, not %04x", name, bits, got, expected);
    }
  }
}

// Sums of pairs that end everywhere between two values, at their middle too.
template <class Element>
void pairs(const Half& half, const char* name) {
  std::mt19937 random(7);
  for (int round = 0; round < 40'000; ++round) {
    const Word a = random() & 0xFFFFu;
    const Word near = (a & 0x7FFFu) > 0x0A00u ? (a - (random() % 0x0A00u)) ^ (random() & 0x8000u) : random();
    const Word b = (round % 2 == 0 ? random() : near) & 0xFFFFu;
    Unit first{}, second{};
    const int index = static_cast<int>(random() % (kUnitBytes / 2));
    set<Element>(first, index, a);
    set<Element>(second, index, b);
    typename Element::Sum sum;
    Element::add(sum, first);
    Element::add(sum, second);
    const Word got = get<Element>(Element::rounded(sum), index);
    const Word expected = half.nearest(0.0f + as_float(half, a) + as_float(half, b));
    expect(got == expected, "%s %04x + %04x gives %04x, not %04x", name, a, b, got, expected);
  }
}

void singles() {
  std::mt19937 random(11);
  for (int round = 0; round < 40'000; ++round) {
    Unit units[3] = {};
    float expected = 0.0f;
    for (Unit& unit : units) {
      const Word bits = round % 3 == 0 ? random() : (random() & 0x81FF'FFFFu) | 0x3E00'0000u;
      set<Float32>(unit, round % 16, bits);
      expected += std::bit_cast<float>(bits);
    }
    Float32::Sum sum;
    for (const Unit& unit : units) Float32::add(sum, unit);
    const Word got = get<Float32>(Float32::rounded(sum), round % 16);
    const Word bits = std::isnan(expected) ? 0x7FFF'FFFFu : std::bit_cast<Word>(expected);
    expect(got == bits, "float32: a sum of three gives %08x, not %08x", got, bits);
  }
}

// A sum that goes through its partials is the same sum: nothing is lost on the way between islands.
template <class Element>
void partials(const char* name) {
  std::mt19937 random(13);
  for (int round = 0; round < 2'000; ++round) {
    Unit first{}, second{};
    for (int word = 0; word < kUnitBytes / 4; ++word) {
      set<Float32>(first, word, random() & 0xBFFF'BFFFu);
      set<Float32>(second, word, random() & 0xBFFF'BFFFu);
    }
    typename Element::Sum direct, other, through;
    Element::add(direct, first);
    Element::add(direct, second);
    Element::add(through, first);
    Element::add(other, second);
    Unit parts[Element::kPartialUnits];
    Element::partial(other, parts);
    Element::add_partial(through, parts);
    const Unit a = Element::rounded(direct);
    const Unit b = Element::rounded(through);
    expect(std::memcmp(&a, &b, sizeof a) == 0, "%s: a sum by way of a partial differs", name);
  }
}

template <class Element>
void no_sum_is_empty(const char* name) {
  for (const Word bits : {Word{0x8000'0000}, Word{0}, Word{0x8000'8000}, Word{0x0000'8000}}) {
    if (std::is_same_v<Element, Float32> && (bits & 0xFFFFu) != 0) continue;  // not a zero there
    typename Element::Sum sum;
    Unit unit{};
    for (int word = 0; word < kUnitBytes / 4; ++word) set<Float32>(unit, word, bits);
    for (int rank = 0; rank < 8; ++rank) Element::add(sum, unit);
    const Word got = get<Float32>(Element::rounded(sum), 3);
    expect(got == 0, "%s: a sum of zeros of any sign must be +0.0, not %08x", name, got);
  }
  Unit unit{};
  set<Float32>(unit, 5, kEmpty);
  expect(arrived(encoded(unit)), "%s: an encoded line must be one that can arrive", name);
  for (int word = 0; word < kUnitBytes / 4; ++word) {
    Unit torn = encoded(unit);
    set<Float32>(torn, word, kEmpty);
    expect(!arrived(torn), "%s: a line without its word %d must not count as arrived", name, word);
  }
}

}  // namespace
}  // namespace pcie_allreduce::test

int main() {
  using namespace pcie_allreduce::test;
  alone<Float16>(kIeee, "float16");
  alone<BFloat16>(kBrain, "bfloat16");
  pairs<Float16>(kIeee, "float16");
  pairs<BFloat16>(kBrain, "bfloat16");
  singles();
  partials<Float32>("float32");
  partials<Float16>("float16");
  partials<BFloat16>("bfloat16");
  no_sum_is_empty<Float32>("float32");
  no_sum_is_empty<Float16>("float16");
  no_sum_is_empty<BFloat16>("bfloat16");
  return result();
}
