// Lanes whose owners have parts of rows, as they are fused with RMSNorm on GPUs: the same protocol, over another
// layout.
#pragma once

#include "fabric/runners.h"

namespace pcie_allreduce::fabric {

class RowsMachine : public Machine<Pack> {
 public:
  RowsMachine(Lane& lane, const RowParts& parts) : Machine(lane), parts_(parts) {}
  RowParts parts() const { return parts_; }
  Word place_of(Word owner, Word i) const { return parts_.place_of(owner, i / parts_.part, i % parts_.part); }

 private:
  RowParts parts_;
};

}  // namespace pcie_allreduce::fabric
