#include "fabric/element.h"

#include "fabric/lane.h"
#include "protocol/dispatch.h"

namespace pcie_allreduce::fabric {

Sum::Sum() : dtype_(Lane::current().dtype()) {}

// visit.template operator()<HostElement>(sum), with the sum as that element has it.
template <class Visit>
void Sum::held(Visit&& visit) {
  dispatch<host::PAR_ISA::Elements>(dtype_, [&]<class HostElement>() {
    typename HostElement::Sum sum;
    static_assert(sizeof sum <= sizeof held_);
    std::memcpy(&sum, held_, sizeof sum);
    visit.template operator()<HostElement>(sum);
    std::memcpy(held_, &sum, sizeof sum);
  });
}

void Sum::add(const Line& line) {
  held([&]<class HostElement>(auto& sum) { HostElement::add(sum, line); });
}
Line Sum::rounded() const {
  Line line;
  Sum(*this).held([&]<class HostElement>(auto& sum) { line = HostElement::rounded(sum); });
  return line;
}
void Sum::partial(Line* parts) const {
  Sum(*this).held([&]<class HostElement>(auto& sum) {
    HostElement::partial(sum, *reinterpret_cast<Line(*)[HostElement::kPartialUnits]>(parts));
  });
}
void Sum::add_partial(const Line* parts) {
  held([&]<class HostElement>(auto& sum) {
    HostElement::add_partial(sum, *reinterpret_cast<const Line(*)[HostElement::kPartialUnits]>(parts));
  });
}

Line nan_line() {
  return dispatch<host::PAR_ISA::Elements>(Lane::current().dtype(),
                                           []<class HostElement>() { return HostElement::nan(); });
}

}  // namespace pcie_allreduce::fabric
