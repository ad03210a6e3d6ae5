// Taking what has arrived: all sources are looked at together, then only those that are missing, together again, so
// that what came last costs one look and not one per source before it. The signature check shares its code with the
// waits, so that a rank that made another call is found out while its data is missing, and not after the deadline.
#pragma once

#include "protocol/channel.h"

namespace pcie_allreduce {

// What a waiting lane needs to know.
struct Waiting {
  const Channel& channel;
  const Request& request;
  const Call& call;
  Pack signature;    // what every rank must have sent
  const Pack* area;  // this rank's packs of this phase; signatures stand first in it
};

template <class Machine>
PAR_INLINE Waiting waiting_for(Machine&, const Channel& channel, const Request& request, const Call& call) {
  const Signature mine{call.number, request.bytes, request.kind, request.row};
  return {channel, request, call, mine.pack(), area_of(channel.slab[channel.rank], call.phase, channel.area_packs)};
}

// Ranks that make another call than this one.
template <class Machine>
PAR_COLD Word out_of_step(Machine& machine, const Waiting& about) {
  Word others = 0;
  PAR_ROLLED
  for (Word index = 0; index < about.channel.world - 1; ++index) {
    const Pack theirs =
        machine.template peek<Pack>(announcement(machine.staged(), about.channel, about.call.phase, index));
    if (arrived(theirs) && !same(theirs, about.signature)) others |= 1u << source_of(index, about.channel.rank);
  }
  return others;
}

// Between two looks at what is missing; true when the lane must give up on these sources. Data wins: a lane that is to
// give up looks once more, and does so the next time. A rank that makes another call is found out by those that wait
// for signatures, and everybody else by their word.
template <class Machine>
PAR_INLINE bool gave_up(Machine& machine, const Waiting& about, Wait& wait, Stage stage, Word missing) {
  const WaitVerdict verdict = machine.keep_waiting(wait, about.call);
  if (verdict == WaitVerdict::kGoOn) [[likely]]
    return false;
  if (stage == Stage::kSignature) {
    const Word others = out_of_step(machine, about);
    if (others != 0) {
      machine.fault({Reason::kMismatch, stage, others}, about.call);
      return true;
    }
  }
  if (wait.due == WaitVerdict::kLook) {
    if (verdict != WaitVerdict::kLook) wait.due = verdict;
    return false;
  }
  machine.fault({wait.due == WaitVerdict::kAborted ? Reason::kNone : Reason::kTimeout, stage, missing}, about.call);
  return true;
}

// As many looks as the machine takes without a thought of time. What is awaited mostly comes meanwhile, so this is the
// code that is to be short: with the long way out of a wait inside of it, a call took 0.15 us more.
template <class Machine, class Came>
PAR_INLINE bool comes_soon(const Came& came) {
  PAR_ROLLED
  for (Word looks = 0; looks < Machine::kLooksAtOnce; ++looks) {
    if (came()) [[likely]]
      return true;
  }
  return false;
}

// The unit of one source. `wait` may be that of several.
template <class Machine, class Unit>
PAR_INLINE bool take_one(Machine& machine, const Waiting& about, Wait& wait, Stage stage, Word source, const Pack* slot,
                         Unit& unit) {
  while (!comes_soon<Machine>([&] { return arrived(unit = machine.template peek<Unit>(slot)); })) {
    if (gave_up(machine, about, wait, stage, 1u << source)) return false;
  }
  return true;
}

// Slots of several sources, in the order of their ranks without the reader's own.
struct Slots {
  const Pack* first;
  Word stride;
  Word reader;  // rank, or place in an island
  PAR_INLINE const Pack* of(Word source) const { return first + source_index(source, reader) * stride; }
};

// Looks at the slots of the sources in `missing`, all at once, and keeps what has arrived. What is still missing. The
// other elements of `got` hold units that have arrived, so that no test depends on a mask.
template <int kSources, class Machine, class Places, class Unit = typename Machine::Unit>
PAR_INLINE Word look(Machine& machine, Word missing, const Places& slots, Unit (&got)[kSources]) {
  PAR_UNROLL
  for (Word source = 0; source < kSources; ++source) {
    if (missing >> source & 1u) got[source] = machine.template peek<Unit>(slots.of(source));
  }
  Word still = missing;
  PAR_UNROLL
  for (Word source = 0; source < kSources; ++source) {
    if (arrived(got[source])) still &= ~(1u << source);
  }
  return still;
}

// One unit of every source in `awaited`, or several of the source in `blamed`. False: the call has failed.
template <int kSources, class Machine, class Places, class Unit = typename Machine::Unit>
PAR_INLINE bool take(Machine& machine, const Waiting& about, Stage stage, Word awaited, const Places& slots,
                     Unit (&got)[kSources], Word blamed = 0) {
  Word missing = awaited;
  const auto came = [&] {
    Word now = missing;
    if constexpr (requires { machine.worth_a_look(stage, missing); }) now = machine.worth_a_look(stage, missing);
    missing = (missing & ~now) | look(machine, now, slots, got);
    return missing == 0;
  };
  Wait wait(kind_algorithm(about.request.kind), stage);
  while (!comes_soon<Machine>(came)) {
    if (gave_up(machine, about, wait, stage, blamed == 0 ? missing : blamed)) return false;
  }
  return true;
}

// The same of every source but the reader, whose own unit stands among them.
template <int kSources, class Machine, class Places, class Unit = typename Machine::Unit>
PAR_INLINE bool take_all(Machine& machine, const Waiting& about, Stage stage, const Places& slots, const Unit& own,
                         Unit (&got)[kSources]) {
  PAR_UNROLL
  for (Word source = 0; source < kSources; ++source) got[source] = own;  // [reader] is; the others are overwritten
  return take(machine, about, stage, ((1u << kSources) - 1u) & ~(1u << slots.reader), slots, got);
}

// What a call gives out for unit i: its sum over the ranks, to which a fused call adds the residual before the one
// rounding.
template <class Element, class Machine>
PAR_INLINE auto rounded_once(Machine& machine, Word i, typename Element::Sum& sum) {
  if constexpr (requires { machine.add_residual(i, sum); }) machine.add_residual(i, sum);
  return Element::rounded(sum);
}

template <class Element, int kWorld, class Machine, class Unit>
PAR_INLINE Unit sum_in_rank_order(Machine& machine, Word i, const Unit (&got)[kWorld]) {
  typename Element::Sum sum;  // starts at +0.0f, so it never ends at -0.0f
  PAR_UNROLL
  for (int source = 0; source < kWorld; ++source) Element::add(sum, got[source]);
  return rounded_once<Element>(machine, i, sum);
}

// The sum of what all sources sent for unit i, the reader's own among them, to `give(sum)`. Between the last arrival
// and the next store lies straight code that a call runs once, and a GPU waits longer for such code than it takes to
// run it. So it is rehearsed while nothing has come yet, once a lane: `rehearsals` counts down.
template <class Element, int kWorld, class Machine, class Places, class Unit, class Give>
PAR_INLINE bool take_and_sum(Machine& machine, const Waiting& about, Stage stage, const Places& slots, const Unit& own,
                             Word i, Word& rehearsals, const Give& give) {
  Unit got[kWorld];
  PAR_UNROLL
  for (Word source = 0; source < kWorld; ++source) got[source] = own;  // [reader] is; the others are overwritten
  PAR_ROLLED
  for (;;) {
    const bool rehearsed = rehearsals == 0;
    if (rehearsed && !take(machine, about, stage, ((1u << kWorld) - 1u) & ~(1u << slots.reader), slots, got)) {
      return false;
    }
    Unit sum = sum_in_rank_order<Element>(machine, i, got);
    if constexpr (requires { machine.keep(sum); }) machine.keep(sum);
    if (rehearsed) {
      give(sum);
      return true;
    }
    --rehearsals;
  }
}

template <class Machine>
PAR_INLINE Word rehearsals_of(Machine& machine) {
  if constexpr (requires { machine.rehearsals(); }) {
    return machine.rehearsals();
  } else {
    return 0;
  }
}

// Every unit of the lane, encoded, to where `put(i, unit)` stores it. `ahead`: the first one, which is asked for beside
// the state of the call, as every other is beside the stores of the one before.
template <class Machine, class Mine, class Unit, class Put>
PAR_INLINE void send_units(Machine& machine, const Request& request, const Mine& mine, Unit& ahead, const Put& put) {
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    const Unit unit = encoded(ahead);
    if (i + mine.step < mine.end) ahead = machine.read(request, i + mine.step);
    put(i, unit);
  }
}

// The sum of every unit of the lane, over all sources. A second loop: a GPU lane runs each once, a CPU lane streams.
template <class Element, int kWorld, class Machine, class Mine, class Places>
PAR_INLINE bool sum_units(Machine& machine, const Waiting& about, const Request& request, const Mine& mine,
                          const Places& slots) {
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    typename Machine::Unit got[kWorld];
    if (!take_all(machine, about, Stage::kGather, slots(i), encoded(machine.read(request, i)), got)) return false;
    machine.write(request, i, sum_in_rank_order<Element>(machine, i, got));
  }
  return true;
}

template <class Machine>
PAR_INLINE void send_signatures(Machine& machine, const Waiting& about) {
  const Channel& channel = about.channel;
  const Range readers = machine.once_a_rank(channel.world - 1);
  PAR_ROLLED
  for (Word index = readers.first; index < readers.end; index += readers.step) {
    const Word reader = source_of(index, channel.rank);
    machine.put(
        area_of(channel.slab[reader], about.call.phase, channel.area_packs) + source_index(channel.rank, reader),
        about.signature);
  }
}

// Every block checks the signatures of all sources, so that no block hands out sums of another call's bytes. A
// signature is the first thing that a rank sends: how long it is waited for is how late its rank is, and is counted
// once a rank.
template <class Machine>
PAR_INLINE bool signatures_agree(Machine& machine, const Waiting& about, const Range& sources) {
  Wait wait(kind_algorithm(about.request.kind), Stage::kSignature);
  const std::uint64_t began = kCountsWaits && sources.first < sources.end ? machine.clock_ns() : 0;  // a slow read
  PAR_ROLLED
  for (Word index = sources.first; index < sources.end; index += sources.step) {
    const Word peer = source_of(index, about.channel.rank);
    const Word source = 1u << peer;
    PeerWait waited{};
    if constexpr (kCountsWaits) waited = machine.waited(peer);  // loaded beside the wait, not behind it
    Pack theirs;
    const Pack* slot = announcement(machine.staged(), about.channel, about.call.phase, index);
    if (!take_one(machine, about, wait, Stage::kSignature, peer, slot, theirs)) return false;
    if constexpr (kCountsWaits) {
      waited.add(machine.clock_ns() - began);
      machine.set_waited(peer, waited);
    }
    if (!same(theirs, about.signature)) {
      machine.fault({Reason::kMismatch, Stage::kSignature, source}, about.call);
      return false;
    }
  }
  return true;
}

// Invariant 4: exactly what the call before this one used, whose words were all taken before this call began. Done in
// the shadow of the longest wait: behind the sends, before a look.
template <class Machine>
PAR_INLINE void rearm(Machine& machine, const Channel& channel, const Call& call) {
  constexpr Word kUnitPacks = sizeof(typename Machine::Unit) / sizeof(Pack);
  Pack* area = area_of(channel.slab[channel.rank], phase_before(call.phase), channel.area_packs);
  const Range mine = machine.rearms(call.stale / kUnitPacks);  // whole lines, so whole units
  for (Word i = mine.first; i < mine.end; i += mine.step) machine.arm(area + i * kUnitPacks);
}

}  // namespace pcie_allreduce
