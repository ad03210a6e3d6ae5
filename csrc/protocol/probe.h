// Experiments of the start-up probe. They measure what the algorithms rely on with the accesses that the algorithms
// make, and every wait ends by the channel's deadline: a wait in vain is a finding. A probe has a channel of its own
// and uses all of its mailbox as scratch memory; only the ping keeps to the page of the greetings, which no call uses,
// so that it may run on any channel before its first call.
#pragma once

#include <stdexcept>

#include "protocol/channel.h"

namespace pcie_allreduce {

enum class ExperimentKind : Word {
  kFill = 0,    // its own outbox, which peers read
  kBursts = 1,  // known packs to every peer of `to`, all at once; those of `from` are awaited and compared
  kPing = 2,    // there and back again, with the one peer of `to`
  kPush = 3,    // stores, until every peer of `to` has said that it saw the last one
  kPull = 4,    // loads from the outbox of every peer of `from`
  kPoll = 5,    // one lane looks at one pack of the peer of `to`, again and again
  kFence = 6,   // one lane stores some packs to the peer of `to` and fences, again and again
  kTear = 7,    // packs of four equal words, stored again and again (`to`) or watched (`from`)
};

struct Experiment {
  ExperimentKind kind;
  Word number;   // what signals say; rises from one experiment to the next by more than the rounds of a ping
  Word meet;     // bit r: begins when rank r does, too
  Word to;       // bit r
  Word from;     // bit r
  Word first;    // kBursts: packs that earlier bursts took
  Word packs;    // to or from each peer
  Word repeats;  // how often all of it is done; kPing: round trips in a batch
};

enum class Finding : Word { kUntested = 0, kFine = 1, kMissing = 2, kChanged = 3 };

// Of kBursts, one for every (source, slice); of kPing, one a batch; of kTear, one a lane; else one a block.
struct Result {
  Word finding;
  Word where;     // kChanged: the word of the burst | kTear: packs seen torn
  Word expected;  // kChanged | kTear: packs seen
  Word got;       // kChanged | kTear: how often the pack had changed since the last look
  Word began[2];  // nanoseconds, low word first
  Word ended[2];
};
static_assert(sizeof(Result) == 32, "told word by word");

constexpr Word kSlices = 32;  // of a burst, each by a lane
constexpr Word kPingBatches = 8;
constexpr Word kProbeBlocks = 32;
constexpr Word kProbeResults = kMaxWorld * kSlices;

constexpr Word kBurstPacks = 6144;     // of all bursts from one source to one reader
constexpr Word kPayloadPacks = 16384;  // 256 KiB
enum class Signal : Word { kReady = 0, kSent = 1, kSeen = 2 };
constexpr Word kSignals = 3 * kMaxWorld * kProbeBlocks;
constexpr Word kBurstOffset = kSignals;
constexpr Word kPayloadOffset = kBurstOffset + kMaxWorld * kBurstPacks;
constexpr Word kOutboxOffset = kPayloadOffset + kMaxWorld * kPayloadPacks;
constexpr Word kProbePacks = kOutboxOffset + kPayloadPacks;
constexpr Word kProbeAreaPacks = whole_lines((kProbePacks + kPhases - 1) / kPhases);
constexpr Word kPingOffset = kMaxWorld * kGreetingPacks;  // behind the greetings
static_assert(kGreetingOffset + (kPingOffset + kMaxWorld) * sizeof(Pack) <= kMailboxOffset, "pings fit");

inline void require_scratch(const Experiment& experiment, Word area_packs) {
  if (experiment.kind != ExperimentKind::kPing && area_packs != kProbeAreaPacks) {
    throw std::invalid_argument("only a channel of its own can be used as scratch memory");
  }
  if (experiment.packs > kPayloadPacks || experiment.first > kBurstPacks ||
      (experiment.kind == ExperimentKind::kBursts && experiment.packs > kBurstPacks - experiment.first)) {
    throw std::invalid_argument("an experiment of this size does not fit its scratch memory");
  }
}

// Mixed words, all ones, all zeros, one bit alone, in turn; never EMPTY. An outbox is a burst to rank kMaxWorld.
PAR_INLINE Pack burst_pattern(Word source, Word reader, Word index) {
  Pack pack;
  PAR_UNROLL
  for (Word w = 0; w < 4; ++w) {
    Word mixed = (((source * 16u + reader) << 20) + index * 4u + w + 1u) * 2654435761u;
    mixed ^= mixed >> 15;
    const Word turn = index & 3u;
    pack.word[w] = turn == 0 ? mixed : (turn == 1 ? ~0u : (turn == 2 ? 0u : 1u << ((index / 4u + w) & 31u)));
  }
  return encoded(pack);
}

template <class Machine>
class Prober {
 public:
  PAR_INLINE Prober(Machine& machine, const Channel& channel, const Experiment& experiment, Result* results, Word block)
      : machine_(machine), channel_(channel), experiment_(experiment), results_(results), block_(block) {}

  PAR_INLINE void run() {
    call_ = machine_.begin_call();
    switch (experiment_.kind) {
      case ExperimentKind::kFill: return fill();
      case ExperimentKind::kBursts: return bursts();
      case ExperimentKind::kPing: return ping();
      case ExperimentKind::kPush: return push();
      case ExperimentKind::kPull: return pull();
      case ExperimentKind::kPoll: return poll();
      case ExperimentKind::kFence: return fences();
      case ExperimentKind::kTear: return tear();
    }
  }

 private:
  PAR_INLINE void fill() {
    const Range mine = machine_.share(kPayloadPacks);
    Pack* outbox = scratch(channel_.rank) + kOutboxOffset;
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      machine_.put(outbox + i, burst_pattern(channel_.rank, kMaxWorld, i));
    }
    machine_.fence();
    tell_block(true, machine_.clock_ns());
  }

  PAR_INLINE void bursts() {
    const Range mine = machine_.share(channel_.world * kSlices);
    const std::uint64_t began = machine_.clock_ns();
    for (Word lane = mine.first; lane < mine.end; lane += mine.step) {
      const Word peer = lane / kSlices;
      if (!in(experiment_.to, peer)) continue;
      Pack* slot = outgoing(peer, kBurstOffset, kBurstPacks) + experiment_.first;
      for (Word i = lane % kSlices; i < experiment_.packs; i += kSlices) {
        machine_.put(slot + i, burst_pattern(channel_.rank, peer, experiment_.first + i));
      }
    }
    for (Word lane = mine.first; lane < mine.end; lane += mine.step) {
      const Word source = lane / kSlices;
      if (in(experiment_.from, source)) tell(lane, compared(source, lane % kSlices), began);
    }
  }

  PAR_INLINE Result compared(Word source, Word slice) {
    const Pack* slot = incoming(source, kBurstOffset, kBurstPacks) + experiment_.first;
    Result result{};
    result.finding = static_cast<Word>(Finding::kFine);
    for (Word i = slice; i < experiment_.packs; i += kSlices) {
      Pack pack = machine_.template peek<Pack>(slot + i);
      while (!arrived(pack) && patient()) pack = machine_.template peek<Pack>(slot + i);
      const Pack expected = burst_pattern(source, channel_.rank, experiment_.first + i);
      if (same(pack, expected)) continue;
      result.finding = static_cast<Word>(arrived(pack) ? Finding::kChanged : Finding::kMissing);
      for (Word w = 4; w-- > 0;) {
        if (pack.word[w] == expected.word[w]) continue;
        result.where = i * 4 + w;
        result.expected = expected.word[w];
        result.got = pack.word[w];
      }
      break;
    }
    return result;
  }

  PAR_INLINE void ping() {
    const Range mine = machine_.once_a_rank(1);
    const Word peer = lowest(experiment_.to);
    const Word there = channel_.staged() ? channel_.rank : peer;  // whose slab holds what this rank says
    const Word here = channel_.staged() ? peer : channel_.rank;
    Pack* out = greeting_of(channel_.slab[there]) + kPingOffset + here;
    const Pack* in = greeting_of(channel_.slab[here]) + kPingOffset + there;
    bool fine = true;
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      for (Word batch = 0; batch < kPingBatches && fine; ++batch) {
        const std::uint64_t began = machine_.clock_ns();
        for (Word round = 0; round < experiment_.repeats && fine; ++round) {
          const Pack said = filled(experiment_.number + batch * experiment_.repeats + round);
          if (channel_.rank < peer) machine_.put(out, said);
          fine = await(in, said);
          if (channel_.rank > peer && fine) machine_.put(out, said);
        }
        Result result{};
        result.finding = static_cast<Word>(fine ? Finding::kFine : Finding::kMissing);
        tell(batch, result, began);
      }
    }
  }

  PAR_INLINE void push() {
    bool fine = met();
    const std::uint64_t began = machine_.clock_ns();
    const Range mine = machine_.share(experiment_.packs);
    for (Word repeat = 0; repeat < experiment_.repeats && fine; ++repeat) {
      for (Word hop = 1; hop < channel_.world; ++hop) {
        const Word peer = after(channel_.rank, hop, channel_.world);
        if (!in(experiment_.to, peer)) continue;
        Pack* slot = outgoing(peer, kPayloadOffset, kPayloadPacks);
        for (Word i = mine.first; i < mine.end; i += mine.step) machine_.put(slot + i, filled(experiment_.number));
      }
    }
    fine = !machine_.any_failed(!fine);  // a barrier, too: the stores of all lanes come before the fences
    const Range peers = machine_.once_a_block(channel_.world);
    for (Word peer = peers.first; peer < peers.end; peer += peers.step) {
      if (in(experiment_.to, peer)) machine_.fence();
      if (in(experiment_.to, peer)) say(Signal::kSent, peer);
    }
    for (Word peer = peers.first; peer < peers.end; peer += peers.step) {
      if (!in(experiment_.from, peer)) continue;
      fine = fine && heard(Signal::kSent, peer);
      if (fine) say(Signal::kSeen, peer);
    }
    for (Word peer = peers.first; peer < peers.end; peer += peers.step) {
      if (in(experiment_.to, peer)) fine = fine && heard(Signal::kSeen, peer);
    }
    fine = !machine_.any_failed(!fine);
    tell_block(fine, began);
  }

  PAR_INLINE void pull() {
    bool fine = met();
    bool changed = false;
    const std::uint64_t began = machine_.clock_ns();
    const Range mine = machine_.share(experiment_.packs);
    for (Word repeat = 0; repeat < experiment_.repeats && fine; ++repeat) {
      for (Word hop = 1; hop < channel_.world; ++hop) {
        const Word source = after(channel_.rank, hop, channel_.world);
        if (!in(experiment_.from, source)) continue;
        const Pack* outbox = scratch(source) + kOutboxOffset;
        for (Word i = mine.first; i < mine.end; i += kInFlight * mine.step) {
          Pack got[kInFlight];
          PAR_UNROLL
          for (Word k = 0; k < kInFlight; ++k) {
            if (i + k * mine.step < mine.end) got[k] = machine_.template peek<Pack>(outbox + i + k * mine.step);
          }
          PAR_UNROLL
          for (Word k = 0; k < kInFlight; ++k) {
            const Word at = i + k * mine.step;
            if (at < mine.end) changed |= !same(got[k], burst_pattern(source, kMaxWorld, at));
          }
        }
      }
    }
    fine = !machine_.any_failed(!fine);
    changed = machine_.any_failed(changed);
    tell_block(fine, began, changed);
  }

  // A look whose answer decides what comes next, as a waiting lane's does.
  PAR_INLINE void poll() {
    const Range mine = machine_.once_a_rank(1);
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      const Pack* slot = incoming(lowest(experiment_.to), kPayloadOffset, kPayloadPacks);
      const std::uint64_t began = machine_.clock_ns();
      Word looks = 0;
      while (looks < experiment_.repeats && machine_.template peek<Pack>(slot).word[0] != ~0u) ++looks;
      tell_fine(began);
    }
  }

  PAR_INLINE void fences() {
    const Range mine = machine_.once_a_rank(1);
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      Pack* slot = outgoing(lowest(experiment_.to), kPayloadOffset, kPayloadPacks);
      const std::uint64_t began = machine_.clock_ns();
      for (Word repeat = 0; repeat < experiment_.repeats; ++repeat) {
        for (Word k = 0; k < experiment_.packs; ++k) machine_.put(slot + k, filled(repeat));
        machine_.fence();
      }
      tell_fine(began);
    }
  }

  PAR_INLINE void tear() {
    const Range mine = machine_.share(kProbeResults);
    const bool writes = experiment_.to != 0;
    const Word peer = lowest(writes ? experiment_.to : experiment_.from);
    const std::uint64_t began = machine_.clock_ns();
    for (Word i = mine.first; i < mine.end; i += mine.step) {
      Pack* out = outgoing(peer, kPayloadOffset, kPayloadPacks) + i;
      const Pack* in = incoming(peer, kPayloadOffset, kPayloadPacks) + i;
      Result seen{};
      seen.finding = static_cast<Word>(Finding::kFine);
      if (writes) {
        for (Word k = 1; k <= experiment_.repeats; ++k) machine_.put(out, filled(experiment_.number + k));
      } else {
        watch(in, seen);
      }
      tell(i, seen, began);
    }
  }

  PAR_INLINE void watch(const Pack* slot, Result& seen) {
    Word last = kEmpty;
    const Pack end = filled(experiment_.number + experiment_.repeats);
    for (Pack pack = machine_.template peek<Pack>(slot);; pack = machine_.template peek<Pack>(slot)) {
      ++seen.expected;
      seen.got += pack.word[0] != last ? 1 : 0;
      seen.where += same(pack, filled(pack.word[0])) ? 0 : 1;
      last = pack.word[0];
      if (same(pack, end)) return;
      if (!patient()) break;
    }
    seen.finding = static_cast<Word>(Finding::kMissing);
  }

  // All that begin together have begun.
  PAR_INLINE bool met() {
    bool fine = true;
    const Range peers = machine_.once_a_block(channel_.world);
    for (Word peer = peers.first; peer < peers.end; peer += peers.step) {
      if (in(experiment_.meet, peer)) say(Signal::kReady, peer);
    }
    for (Word peer = peers.first; peer < peers.end; peer += peers.step) {
      if (in(experiment_.meet, peer)) fine = fine && heard(Signal::kReady, peer);
    }
    return !machine_.any_failed(!fine);
  }

  PAR_INLINE void say(Signal signal, Word peer) {
    machine_.put(outgoing(peer, offset(signal), kProbeBlocks) + block_, filled(experiment_.number));
  }
  PAR_INLINE bool heard(Signal signal, Word peer) {
    return await(incoming(peer, offset(signal), kProbeBlocks) + block_, filled(experiment_.number));
  }
  PAR_INLINE bool await(const Pack* slot, const Pack& expected) {
    bool here = same(machine_.template peek<Pack>(slot), expected);
    while (!here && patient()) here = same(machine_.template peek<Pack>(slot), expected);
    return here;
  }
  PAR_INLINE bool patient() {
    if (given_up_) return false;
    if (++looks_ % Machine::kLooksAtOnce != 0) return true;
    const WaitVerdict waited = machine_.keep_waiting(wait_, call_);
    given_up_ = waited == WaitVerdict::kOutOfTime || waited == WaitVerdict::kAborted;
    return true;  // once more after the deadline: it may have come meanwhile
  }

  // What is written for a peer lies with that peer; staged, with its writer.
  PAR_INLINE Pack* outgoing(Word peer, Word offset, Word stride) const {
    const Word rank = channel_.rank;
    return scratch(channel_.staged() ? rank : peer) + offset + (channel_.staged() ? peer : rank) * stride;
  }
  PAR_INLINE const Pack* incoming(Word peer, Word offset, Word stride) const {
    const Word rank = channel_.rank;
    return scratch(channel_.staged() ? peer : rank) + offset + (channel_.staged() ? rank : peer) * stride;
  }
  PAR_INLINE Pack* scratch(Word owner) const { return area_of(channel_.slab[owner], 0, channel_.area_packs); }
  PAR_INLINE static Word offset(Signal signal) { return static_cast<Word>(signal) * kMaxWorld * kProbeBlocks; }
  PAR_INLINE static Pack filled(Word word) { return {{word, word, word, word}}; }
  PAR_INLINE static bool in(Word mask, Word rank) { return (mask >> rank & 1u) != 0; }
  PAR_INLINE static Word lowest(Word mask) {
    Word rank = 0;
    while (rank + 1 < kMaxWorld && !in(mask, rank)) ++rank;
    return rank;
  }

  PAR_INLINE void tell_block(bool fine, std::uint64_t began, bool changed = false) {
    const Range mine = machine_.once_a_block(1);
    Result result{};
    result.finding = static_cast<Word>(fine ? (changed ? Finding::kChanged : Finding::kFine) : Finding::kMissing);
    for (Word i = mine.first; i < mine.end; i += mine.step) tell(block_, result, began);
  }
  PAR_INLINE void tell_fine(std::uint64_t began) {
    Result result{};
    result.finding = static_cast<Word>(Finding::kFine);
    tell(0, result, began);
  }
  PAR_INLINE void tell(Word index, Result result, std::uint64_t began) {
    const std::uint64_t ended = machine_.clock_ns();
    Word* to = &results_[index].finding;
    const Word words[8] = {result.finding,           result.where,
                           result.expected,          result.got,
                           static_cast<Word>(began), static_cast<Word>(began >> 32),
                           static_cast<Word>(ended), static_cast<Word>(ended >> 32)};
    PAR_UNROLL
    for (Word w = 0; w < 8; ++w) machine_.tell(to + w, words[w]);
  }

  static constexpr Word kInFlight = 4;

  Machine& machine_;
  const Channel& channel_;
  const Experiment& experiment_;
  Result* results_;
  Word block_;
  Call call_{};
  Wait wait_{Algorithm::kNone, Stage::kSignature};
  Word looks_ = 0;
  bool given_up_ = false;
};

}  // namespace pcie_allreduce
