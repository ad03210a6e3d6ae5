// The greeting: before the first call every rank sends a known pattern to every other and awaits theirs under a short
// deadline. A machine where peer-to-peer traffic hangs or arrives changed is found here, with the pair, and not by a
// user.
#pragma once

#include "protocol/channel.h"

namespace pcie_allreduce {

enum class Greeting : Word { kUntested = 0, kFine = 1, kMissing = 2, kWrong = 3 };

// Differs in every word for every (source, reader, index), and is never EMPTY: bit 31 is clear.
PAR_INLINE Pack greeting_pattern(Word source, Word reader, Word index) {
  const Word seed = ((source * kMaxWorld + reader) * kGreetingPacks + index) * 4u;
  Pack pack;
  PAR_UNROLL
  for (Word w = 0; w < 4; ++w) pack.word[w] = ((seed + w + 1u) * 2654435761u) & 0x7FFF'FFFFu;
  return pack;
}

// verdict: one Greeting per (source, index), kMaxWorld * kGreetingPacks words that the host reads.
template <class Machine>
PAR_INLINE void exchange_greetings(Machine& machine, const Channel& channel, Word* verdict) {
  const Call call = machine.begin_call();
  const auto mine = machine.share(channel.world * kGreetingPacks);
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    const Word peer = i / kGreetingPacks;
    if (peer == channel.rank) continue;
    machine.put(greeting_of(channel.slab[peer]) + channel.rank * kGreetingPacks + i % kGreetingPacks,
                greeting_pattern(channel.rank, peer, i % kGreetingPacks));
  }
  const std::uint64_t began = machine.clock_ns();
  Wait wait(Algorithm::kNone, Stage::kSignature);
  for (Word i = mine.first; i < mine.end; i += mine.step) {
    const Word source = i / kGreetingPacks;
    if (source == channel.rank) continue;
    const Pack* slot = greeting_of(channel.slab[channel.rank]) + i;
    Pack pack = machine.template peek<Pack>(slot);
    while (!arrived(pack)) {
      const WaitVerdict waited = machine.keep_waiting(wait, call);
      pack = machine.template peek<Pack>(slot);
      // A farewell does not end it: its rank may have greeted before.
      const bool late = waited == WaitVerdict::kAborted && machine.clock_ns() - began > channel.warmup_timeout_ns;
      if (late || waited == WaitVerdict::kOutOfTime) break;
    }
    const Pack expected = greeting_pattern(source, channel.rank, i % kGreetingPacks);
    const bool right = same(pack, expected);
    machine.tell(verdict + i,
                 static_cast<Word>(right ? Greeting::kFine : (arrived(pack) ? Greeting::kWrong : Greeting::kMissing)));
  }
}

}  // namespace pcie_allreduce
