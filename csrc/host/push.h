// The pushing algorithms on a CPU's machine, with or without a norm.
#pragma once

#include "host/unit.h"
#include "protocol/dispatch.h"
#include "protocol/island.h"
#include "protocol/one_shot.h"
#include "protocol/two_shot.h"

namespace pcie_allreduce::host::PAR_ISA {

template <class Element, class Machine>
void push(Machine& machine, const Channel& channel, const Request& request) {
  switch (kind_algorithm(request.kind)) {
    case Algorithm::kTwoShot:
      return dispatch_world<Element>(
          channel.world, [&]<class, int kWorld>() { two_shot<Element, kWorld>(machine, channel, request); });
    case Algorithm::kIsland:
      return dispatch_half<Element>(channel.world,
                                    [&]<class, int kHalf>() { island<Element, kHalf>(machine, channel, request); });
    default:
      return dispatch_world<Element>(
          channel.world, [&]<class, int kWorld>() { one_shot<Element, kWorld>(machine, channel, request); });
  }
}

}  // namespace pcie_allreduce::host::PAR_ISA
