// The CPU's machine with residual and RMSNorm: a lane streams through all units as it does without, and then through
// the rows, which its cache holds. Columns are summed sixteen words apart, so that every instruction set adds in the
// same order.
#pragma once

#include <cmath>

#include "host/machine.h"
#include "protocol/norm.h"

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
    if (failed_) Machine::write({nullptr, norm_.normed, request.bytes, 0, false}, i, unit);  // NaN
  }
  bool any_failed(bool failed) { return failed_ = Machine::any_failed(failed); }
  void end_call(const Call& call, Word used) {
    const Word row_bytes = request_.row * element_bytes(kind_dtype(request_.kind));
    for (Word offset = 0; offset < request_.bytes; offset += row_bytes) {
      normalise({static_cast<const char*>(request_.out) + offset, static_cast<char*>(norm_.normed) + offset, row_bytes,
                 0, false});
    }
    Machine::end_call(call, used);
  }

 private:
  using Sum = typename Element::Sum;
  static constexpr int kFloats = sizeof(Sum) / sizeof(Floats);

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
  void normalise(const Request& row) const {
    const float scale = scale_of(row);
    const Request weights{norm_.weight, nullptr, row.bytes, 0, false};
    for (Word i = 0; i < row.units<Unit>(); ++i) {
      Sum values = widened(row, i);
      Sum weight = widened(weights, i);
      for (int f = 0; f < kFloats; ++f) {
        // + 0.0f: zero has one sign here too
        floats(values)[f] = floats(values)[f] * scale * (floats(weight)[f] + norm_.weight_bias) + 0.0f;
      }
      Machine::write(row, i, Element::rounded(values));
    }
  }

  const Request& request_;
  const Norm& norm_;
  bool failed_ = false;
};

}  // namespace pcie_allreduce::host::PAR_ISA
