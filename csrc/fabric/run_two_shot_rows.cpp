#include "fabric/rows_machine.h"
#include "protocol/two_shot.h"

namespace pcie_allreduce::fabric {

void run_two_shot_rows(Lane& lane, const Channel& channel, const Request& request, Mapping mapping) {
  if (mapping == Mapping::kLines) return run_two_shot(lane, channel, request, mapping);  // no part is whole lines there
  dispatch<ElementsOf<Pack>>(kind_dtype(request.kind), [&]<class Element>() {
    RowsMachine machine(lane, row_parts(request, channel.world));
    dispatch_world<Element>(channel.world,
                            [&]<class, int kWorld>() { two_shot<Element, kWorld>(machine, channel, request); });
  });
}

}  // namespace pcie_allreduce::fabric
