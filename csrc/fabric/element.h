// The elements of a lane's call: the CPU ranks' own arithmetic, so that there is nothing here to get wrong. Which dtype
// it is, is known when it runs, and it is called, not inlined: in every algorithm, world and unit it would take a
// compiler minutes.
#pragma once

#include <cstring>

#include "host/element.h"
#include "protocol/channel.h"

namespace pcie_allreduce::fabric {

using Line = host::PAR_ISA::Unit;

class Sum {
 public:
  Sum();
  void add(const Line& line);
  Line rounded() const;
  void partial(Line* parts) const;
  void add_partial(const Line* parts);

 private:
  template <class Visit>
  void held(Visit&& visit);

  Dtype dtype_;
  alignas(Line) char held_[2 * sizeof(Line)] = {};  // of whichever element has the most
};

Line nan_line();

// With a pack in the first part of its line.
template <class UnitType, int kParts>
struct Element {
  using Sum = fabric::Sum;
  static constexpr int kPartialUnits = kParts;

  static void add(Sum& sum, const UnitType& unit) { sum.add(line_of(unit)); }
  static UnitType rounded(const Sum& sum) { return first(sum.rounded()); }
  static UnitType nan() { return first(nan_line()); }
  static void partial(const Sum& sum, UnitType (&parts)[kParts]) {
    Line lines[kParts];
    sum.partial(lines);
    for (int p = 0; p < kParts; ++p) parts[p] = first(lines[p]);
  }
  static void add_partial(Sum& sum, const UnitType (&parts)[kParts]) {
    Line lines[kParts];
    for (int p = 0; p < kParts; ++p) lines[p] = line_of(parts[p]);
    sum.add_partial(lines);
  }

 private:
  static Line line_of(const UnitType& unit) {
    Line line{};
    std::memcpy(&line, &unit, sizeof unit);
    return line;
  }
  static UnitType first(const Line& line) {
    UnitType unit;
    std::memcpy(&unit, &line, sizeof unit);
    return unit;
  }
};

template <class One, class Two>
struct SameForHalves {
  using Float32 = One;
  using Float16 = Two;
  using BFloat16 = Two;
};
template <class Unit>
using ElementsOf = SameForHalves<Element<Unit, 1>, Element<Unit, 1>>;
// Partial sums travel as one unit or as two, which is all that an algorithm must know of a dtype when it is compiled.
template <class Unit>
using PartialElementsOf = SameForHalves<Element<Unit, 1>, Element<Unit, 2>>;

}  // namespace pcie_allreduce::fabric
