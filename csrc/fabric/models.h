// Small models of what the package does not have yet, right and wrong, so that the checker is known to find their
// faults before they are written: slots in host memory, pull, and reduce-scatter and all-gather alone. They stand on
// the same machine and the same waits, send no signatures, and are not algorithms of the package.
#pragma once

#include "fabric/algorithms.h"
#include "fabric/machine.h"
#include "protocol/take.h"

namespace pcie_allreduce::fabric {

// Slots in memory of all ranks' hosts, where one copy serves all readers; re-armed by their writer.
struct HostSlots {
  Word phases;
  Word age;  // call k re-arms what call k - age used
  bool fence;
};

template <class Element, int kWorld, class MachineType>
void host_staged(MachineType& machine, const Channel& channel, const Request& request, const HostSlots& how) {
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, request, call);
  const Word k = machine.lane().id.call;  // epochs are another fault's subject
  const Word stride = machine.lane().largest_payload();
  const auto slots = [&](Word of_call) { return machine.lane().shared() + of_call % how.phases * kWorld * stride; };
  const Range mine = machine.share(request.units());
  bool failed = false;
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    machine.put(slots(k) + channel.rank * stride + i, encoded(machine.read(request, i)));
  }
  if (k >= how.age) {
    const Word old = k - how.age;
    const Range stale = machine.share(machine.lane().packs_of_call(old));
    for (Word i = stale.first; i < stale.end; i += stale.step) machine.arm(slots(old) + channel.rank * stride + i);
    if (how.fence) machine.fence();
  }
  for (Word i = mine.first; i < mine.end && !failed; i += mine.step) {
    Pack got[kWorld] = {};
    got[channel.rank] = encoded(machine.read(request, i));
    const Word others = ((1u << kWorld) - 1u) & ~(1u << channel.rank);
    failed = !take(machine, about, Stage::kGather, others, Slots{slots(k) + i, stride, kWorld}, got);
    if (!failed) machine.write(request, i, sum_in_rank_order<Element>(machine, i, got));
  }
  if (!machine.any_failed(failed)) machine.end_call(call, 0);
}

// Own data to own staging, one flag to every peer, then everyone reads everyone's staging.
struct Pull {
  Word copies;
  bool equal;  // wait for flag == epoch, and not for flag >= epoch
};

template <class Element, int kWorld, class MachineType>
void pull(MachineType& machine, const Channel& channel, const Request& request, const Pull& how) {
  const Call call = machine.begin_call();
  Lane& lane = machine.lane();
  const Word epoch = lane.id.call + 1;
  const auto staging = [&](Word rank) {
    return area_of(channel.slab[rank], 0, channel.area_packs) + epoch % how.copies * lane.largest_payload();
  };
  const auto flag = [&](Word at, Word source) { return lane.flag(at, source); };
  const Range mine = machine.share(request.units());
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    lane.stage(staging(channel.rank) + i, encoded(machine.read(request, i)));
  }
  machine.fence();
  lane.meet();  // the block's barrier: its flag speaks for all its lanes
  for (Word peer = 0; peer < kWorld && lane.id.thread == 0; ++peer) {
    if (peer != channel.rank) lane.store(flag(peer, channel.rank), epoch);
  }
  bool failed = false;
  Wait wait(Algorithm::kNone, Stage::kSignature);
  for (Word source = 0; source < kWorld && !failed; ++source) {
    if (source == channel.rank) continue;
    const auto there = [&] {
      const Word seen = lane.load(flag(channel.rank, source));
      return how.equal ? seen == epoch : static_cast<std::int32_t>(seen - epoch) >= 0;
    };
    while (!there() && !failed) {
      if (machine.keep_waiting(wait, call) != WaitVerdict::kOutOfTime || there()) continue;
      machine.fault({Reason::kTimeout, Stage::kGather, 1u << source}, call);
      failed = true;
    }
  }
  for (Word i = mine.first; i < mine.end && !failed; i += mine.step) {
    Pack got[kWorld];
    for (Word source = 0; source < kWorld; ++source) {
      got[source] =
          source == channel.rank ? encoded(machine.read(request, i)) : machine.template peek<Pack>(staging(source) + i);
    }
    machine.write(request, i, sum_in_rank_order<Element>(machine, i, got));
  }
  if (!machine.any_failed(failed)) machine.end_call(call, 0);
}

// Alone, without the other half of a two-shot: what a rank completes no longer depends on all the others, unless every
// source sends at least one pack to every destination, also for an empty shard.
inline Word at_least(bool one, Word packs) { return one && packs == 0 ? 1 : packs; }

template <class Element, int kWorld, class MachineType>
void reduce_scatter(MachineType& machine, const Channel& channel, const Request& request, bool always_one) {
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, request, call);
  const OneShotLayout layout(kWorld, request.units());
  bool failed = false;
  for (Word owner = 0; owner < kWorld; ++owner) {
    const Range shard = pack_shard(kWorld, owner, request.units());
    const Range mine = machine.share(at_least(always_one, shard.end - shard.first));
    for (Word i = mine.first; i < mine.end && owner != channel.rank; i += mine.step) {
      machine.put(area_of(channel.slab[owner], call.phase, channel.area_packs) + layout.slot(channel.rank, owner) + i,
                  shard.first + i < shard.end ? encoded(machine.read(request, shard.first + i)) : Pack{});
    }
  }
  rearm(machine, channel, call);
  const Range shard = pack_shard(kWorld, channel.rank, request.units());
  const Range mine = machine.share(at_least(always_one, shard.end - shard.first));
  for (Word i = mine.first; i < mine.end && !failed; i += mine.step) {
    Pack got[kWorld] = {};
    const bool padding = shard.first + i >= shard.end;
    const Pack own = padding ? Pack{} : encoded(machine.read(request, shard.first + i));
    const Slots slots{about.area + kLinePacks + i, layout.stride, channel.rank};
    failed = !take_all(machine, about, Stage::kScatter, slots, own, got);
    if (!failed && !padding) machine.write(request, shard.first + i, sum_in_rank_order<Element>(machine, i, got));
  }
  if (!machine.any_failed(failed)) machine.end_call(call, layout.used());
}

template <class Element, int kWorld, class MachineType>
void all_gather(MachineType& machine, const Channel& channel, const Request& request, bool always_one) {
  const Call call = machine.begin_call();
  const Waiting about = waiting_for(machine, channel, request, call);
  const OneShotLayout layout(kWorld, request.units());
  const Range own = pack_shard(kWorld, channel.rank, request.units());
  const Range mine = machine.share(at_least(always_one, own.end - own.first));
  bool failed = false;
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    const bool padding = own.first + i >= own.end;
    const Pack pack = padding ? Pack{} : encoded(machine.read(request, own.first + i));
    for (Word reader = 0; reader < kWorld; ++reader) {
      if (reader == channel.rank) continue;
      machine.put(area_of(channel.slab[reader], call.phase, channel.area_packs) + layout.slot(channel.rank, reader) + i,
                  pack);
    }
    const Pack alone[1] = {pack};  // a sum of one, so that a zero is positive here too
    if (!padding) machine.write(request, own.first + i, sum_in_rank_order<Element>(machine, i, alone));
  }
  rearm(machine, channel, call);
  for (Word source = 0; source < kWorld; ++source) {
    const Range shard = pack_shard(kWorld, source, request.units());
    const Range theirs = machine.share(at_least(always_one, shard.end - shard.first));
    for (Word i = theirs.first; i < theirs.end && !failed && source != channel.rank; i += theirs.step) {
      Pack got[kWorld] = {};
      const Slots slots{about.area + kLinePacks + i, layout.stride, channel.rank};
      failed = !take(machine, about, Stage::kGather, 1u << source, slots, got);
      const Pack alone[1] = {got[source]};
      if (!failed && shard.first + i < shard.end)
        machine.write(request, shard.first + i, sum_in_rank_order<Element>(machine, i, alone));
    }
  }
  if (!machine.any_failed(failed)) machine.end_call(call, layout.used());
}

}  // namespace pcie_allreduce::fabric
