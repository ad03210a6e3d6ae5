// Taking what has arrived: all sources are looked at together, then only those that are missing, together again, so that
// what came last costs one look and not one per source before it. The signature check shares its code with the waits, so that a rank that made another call is found
// out while its data is missing, and not after the deadline.
#pragma once

#include "protocol/channel.h"

namespace pcie_allreduce {

// What a waiting lane needs to accuse somebody.
struct Waiting {
  const Channel& channel;
  const Request& request;
  const Call& call;
  Pack signature;    // what every rank must have sent
  const Pack* area;  // this rank's packs of this phase; signatures stand first in it
};

template <class Machine>
PAR_INLINE Waiting waiting_for(Machine&, const Channel& channel, const Request& request, const Call& call) {
  const Signature mine{call.number, request.bytes, request.kind};
  return {channel, request, call, mine.pack(), area_of(channel.slab[channel.rank], call.phase, channel.area_packs)};
}

// True when the lane must give up on the sources in `missing`. Not on the path of a call whose peers are in time.
template <class Machine>
PAR_COLD bool gives_up(Machine& machine, const Waiting& about, WaitVerdict verdict, Stage stage, Word missing) {
  if (verdict != WaitVerdict::kLook) {
    machine.fault({verdict == WaitVerdict::kAborted ? Reason::kNone : Reason::kTimeout, stage, missing, {}},
                  about.call);
    return true;
  }
  const Word rank = about.channel.rank;
  for (Word index = 0; index < about.channel.world - 1; ++index) {
    const Word suspect = 1u << source_of(index, rank);
    if ((missing & suspect) == 0) continue;
    const Pack theirs = machine.template peek<Pack>(about.area + index);
    if (!arrived(theirs) || same(theirs, about.signature)) continue;
    machine.fault({Reason::kMismatch, stage, suspect, theirs}, about.call);
    return true;
  }
  return false;
}

// Looks at the packs of the sources in `missing`, all at once, and keeps what has arrived. What is still missing.
template <int kWorld, class Machine, class Unit = typename Machine::Unit>
PAR_INLINE Word look(Machine& machine, Word missing, Word rank, const Pack* slots, Word stride, Unit (&got)[kWorld]) {
  PAR_UNROLL
  for (Word source = 0; source < kWorld; ++source) {
    if (missing >> source & 1u) got[source] = machine.template peek<Unit>(slots + source_index(source, rank) * stride);
  }
  Word still = missing;
  PAR_UNROLL
  for (Word source = 0; source < kWorld; ++source) {
    if (arrived(got[source])) still &= ~(1u << source);
  }
  return still;
}

template <int kWorld, class Machine, class Unit = typename Machine::Unit>
PAR_COLD bool wait_for(Machine& machine, const Waiting& about, Stage stage, Word missing, const Pack* slots,
                       Word stride, Unit (&got)[kWorld]) {
  Wait wait;
  while (missing != 0) {
    const WaitVerdict verdict = machine.keep_waiting(wait, about.call);
    missing = look(machine, missing, about.channel.rank, slots, stride, got);  // also after the deadline: data wins
    if (verdict != WaitVerdict::kGoOn && missing != 0 && gives_up(machine, about, verdict, stage, missing)) return false;
  }
  return true;
}

// One unit of every source but this rank, at slots + index * stride, and `own`. False: the call has failed.
template <int kWorld, class Machine, class Unit = typename Machine::Unit>
PAR_INLINE bool take_all(Machine& machine, const Waiting& about, Stage stage, const Pack* slots, Word stride,
                         Word rank, const Unit& own, Unit (&got)[kWorld]) {
  PAR_UNROLL
  for (Word source = 0; source < kWorld; ++source) got[source] = own;  // [rank] is; the others are overwritten
  const Word others = ((1u << kWorld) - 1u) & ~(1u << rank);
  const Word missing = look(machine, others, rank, slots, stride, got);
  return missing == 0 || wait_for(machine, about, stage, missing, slots, stride, got);
}

template <class Machine>
PAR_INLINE void send_signatures(Machine& machine, const Waiting& about) {
  const Channel& channel = about.channel;
  const Range readers = machine.once_a_rank(channel.world - 1);
  for (Word index = readers.first; index < readers.end; index += readers.step) {
    const Word reader = source_of(index, channel.rank);
    machine.put(area_of(channel.slab[reader], about.call.phase, channel.area_packs) +
                    source_index(channel.rank, reader),
                about.signature);
  }
}

// Every block checks the signatures of all sources, so that no block hands out sums of another call's bytes.
template <class Machine>
PAR_INLINE bool signatures_agree(Machine& machine, const Waiting& about) {
  Wait wait;
  const Range sources = machine.once_a_block(about.channel.world - 1);
  for (Word index = sources.first; index < sources.end; index += sources.step) {
    const Word source = 1u << source_of(index, about.channel.rank);
    Pack theirs = machine.template peek<Pack>(about.area + index);
    while (!arrived(theirs)) {
      const WaitVerdict verdict = machine.keep_waiting(wait, about.call);
      theirs = machine.template peek<Pack>(about.area + index);
      if (verdict != WaitVerdict::kGoOn && !arrived(theirs) &&
          gives_up(machine, about, verdict, Stage::kSignature, source)) {
        return false;
      }
    }
    if (!same(theirs, about.signature)) {
      machine.fault({Reason::kMismatch, Stage::kSignature, source, theirs}, about.call);
      return false;
    }
  }
  return true;
}

// Invariant 4: exactly what the call before this one used, whose words were all taken before this call began. Done in the
// shadow of the wait: behind the sends, before the first look.
template <class Machine>
PAR_INLINE void rearm(Machine& machine, const Channel& channel, const Call& call) {
  constexpr Word kUnitPacks = sizeof(typename Machine::Unit) / sizeof(Pack);
  Pack* area = area_of(channel.slab[channel.rank], phase_before(call.phase), channel.area_packs);
  const Range mine = machine.share(call.stale / kUnitPacks);  // whole lines, so whole units
  for (Word i = mine.first; i < mine.end; i += mine.step) machine.arm(area + i * kUnitPacks);
}

}  // namespace pcie_allreduce
