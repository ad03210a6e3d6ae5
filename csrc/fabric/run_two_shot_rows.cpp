// Two-shot whose owners have parts of rows, as it is fused with RMSNorm on GPUs: the same protocol, over another
// layout.
#include "fabric/runners.h"
#include "protocol/two_shot.h"

namespace pcie_allreduce::fabric {
namespace {

class RowsMachine : public Machine<Pack> {
 public:
  RowsMachine(Lane& lane, const RowParts& parts) : Machine(lane), parts_(parts) {}
  RowParts parts() const { return parts_; }
  Word place_of(Word owner, Word i) const { return parts_.place_of(owner, i / parts_.part, i % parts_.part); }

 private:
  RowParts parts_;
};

}  // namespace

void run_two_shot_rows(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  if (mapping == Mapping::kLines) return run_two_shot(lane, channel, request, mapping);  // no part is whole lines there
  dispatch<PackElements<Pack>>(kind_dtype(request.kind), [&]<class Element>() {
    RowsMachine machine(lane, row_parts(request, channel.world));
    dispatch_world<Element>(channel.world,
                            [&]<class, int kWorld>() { two_shot<Element, kWorld>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
