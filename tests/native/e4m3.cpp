// FP8 against a table of its values: every value, what lies next to it, and the middles between two, where the even one
// is taken.
#include "protocol/e4m3.h"

#include <cmath>
#include <initializer_list>
#include <limits>

#include "expect.h"

namespace pcie_allreduce::test {
namespace {

double value(Word code) {
  const int exponent = static_cast<int>(code >> 3);
  const Word fraction = code & 7u;
  return exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
}

void gives(float from, Word code) {
  expect(e4m3(from) == code, "%a gives %02x, not %02x", static_cast<double>(from), e4m3(from), code);
  expect(e4m3(-from) == (code | 0x80u), "%a gives %02x, not %02x", static_cast<double>(-from), e4m3(-from),
         code | 0x80u);
}

void values() {
  for (Word code = 0; code < 0x7Eu; ++code) {
    gives(static_cast<float>(value(code)), code);
    const float middle = static_cast<float>((value(code) + value(code + 1)) / 2);
    gives(middle, code + code % 2);
    gives(std::nextafter(middle, 0.0f), code);
    gives(std::nextafter(middle, 1e9f), code + 1);
  }
}

void beyond() {
  for (const float large : {448.0f, 463.9f, 464.1f, 480.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    gives(large, 0x7E);
  }
  gives(std::numeric_limits<float>::denorm_min(), 0);
  for (const float nan : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    expect(e4m3(nan) == kNanE4m3, "NaN gives %02x", e4m3(nan));
  }
}

void scales() {
  for (const float largest : {0.0f, 1e-12f}) {
    const Scale of = scale_of_group(largest);
    expect(of.scale == 1e-10f * (1.0f / 448.0f), "a group up to %a has scale %a", static_cast<double>(largest),
           static_cast<double>(of.scale));
  }
  for (float largest = 1e-9f; largest < 1e30f; largest *= 1.7f) {
    const Scale of = scale_of_group(largest);
    expect(e4m3(largest * of.inverse) == 0x7Eu, "%a is not its group's largest", static_cast<double>(largest));
    expect(std::fabs(of.scale * of.inverse - 1.0f) < 1e-6f, "%a: %a is not %a inverted", static_cast<double>(largest),
           static_cast<double>(of.scale), static_cast<double>(of.inverse));
  }
}

}  // namespace
}  // namespace pcie_allreduce::test

int main() {
  using namespace pcie_allreduce::test;
  values();
  beyond();
  scales();
  return result();
}
