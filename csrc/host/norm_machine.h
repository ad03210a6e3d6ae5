// The CPU's machine with residual and RMSNorm: a lane streams through all units as it does without, and then through
// the rows, which its cache holds. Columns are summed sixteen words apart, so that every instruction set adds in the
// same order.
#pragma once

#include <cmath>

#include "host/machine.h"
#include "host/quantise.h"

namespace pcie_allreduce::host::PAR_ISA {

template <class Element>
class NormMachine : public Machine {
 public:
  NormMachine(const Channel& channel, const Request& request, const Norm& norm, bool crowded, Watch& watch)
      : Machine(channel, request, crowded, watch), request_(request), norm_(norm) {}

  void add_residual(Word i, typename Element::Sum& sum) const {
    Element::add(sum, read({norm_.residual, nullptr, request_.bytes, 0, false}, i));
  }
  void write(const Request& request, Word i, const Unit& unit) const {
    Machine::write(request, i, unit);
    if (failed_ && norm_.fp8 == Fp8::kNone) {
      Machine::write({nullptr, norm_.normed, request.bytes, 0, false}, i, unit);  // NaN
    }
  }
  bool any_failed(bool failed) {
    failed_ = Machine::any_failed(failed);
    if (failed_ && norm_.fp8 != Fp8::kNone) quantise_nan(norm_, request_.bytes / kBytes);
    return failed_;
  }
  void end_call(const Call& call, Word used) {
    const Word row_bytes = request_.row * kBytes;
    for (Word offset = 0; offset < request_.bytes; offset += row_bytes) {
      const Request row{static_cast<const char*>(request_.out) + offset, static_cast<char*>(norm_.normed) + offset,
                        row_bytes, 0, false};
      if (norm_.fp8 == Fp8::kNone) {
        normalise(row, [&](Word i, Sum& values) { Machine::write(row, i, Element::rounded(values)); });
      } else {
        quantise_row(row, offset / kBytes);
      }
    }
    Machine::end_call(call, used);
  }

 private:
  using Sum = typename Element::Sum;
  static constexpr int kFloats = sizeof(Sum) / sizeof(Floats);
  static constexpr Word kElements = sizeof(Sum) / sizeof(float);  // of a unit
  static constexpr Word kBytes = sizeof(Unit) / kElements;

  static Floats* floats(Sum& sum) { return reinterpret_cast<Floats*>(&sum); }
  Sum widened(const Request& row, Word i) const {
    Sum values;
    Element::add(values, read(row, i));
    return values;
  }
  float scale_of(const Request& row) const {
    Sum squares;
    for (Word i = 0; i < row.units<Unit>(); ++i) {
      Sum values = widened(row, i);
      for (int f = 0; f < kFloats; ++f) floats(squares)[f] += floats(values)[f] * floats(values)[f];
    }
    float column[sizeof(Sum) / sizeof(float)];
    std::memcpy(column, &squares, sizeof column);
    float total = 0;
    for (const float square : column) total += square;
    return 1.0f / std::sqrt(total / static_cast<float>(request_.row) + norm_.eps);
  }
  // The elements of a unit, of which a sum may have the even ones first.
  static void in_order(Sum& sum, float* to) {
    constexpr Word kApart = Element::kPartialUnits;
    float column[kElements];
    std::memcpy(column, &sum, sizeof column);
    for (Word e = 0; e < kElements; ++e) to[e] = column[e % kApart * (kElements / kApart) + e / kApart];
  }
  template <class Give>
  void normalise(const Request& row, const Give& give) const {
    const float scale = scale_of(row);
    const Request weights{norm_.weight, nullptr, row.bytes, 0, false};
    for (Word i = 0; i < row.units<Unit>(); ++i) {
      Sum values = widened(row, i);
      Sum weight = widened(weights, i);
      for (int f = 0; f < kFloats; ++f) {
        // + 0.0f: zero has one sign here too
        floats(values)[f] = floats(values)[f] * scale * (floats(weight)[f] + norm_.weight_bias) + 0.0f;
      }
      give(i, values);
    }
  }
  void quantise_row(const Request& row, Word first) const {
    float normed[kGroup];  // whole units
    normalise(row, [&](Word i, Sum& values) {
      const Word end = (i + 1) * kElements;
      in_order(values, normed + i * kElements % kGroup);
      const Word begin = (end - 1) / kGroup * kGroup;
      if (end % kGroup == 0 || end >= request_.row) {
        quantise(norm_, normed, first + begin, (end < request_.row ? end : request_.row) - begin);
      }
    });
  }

  const Request& request_;
  const Norm& norm_;
  bool failed_ = false;
};

}  // namespace pcie_allreduce::host::PAR_ISA
