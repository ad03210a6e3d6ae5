// The end of a rank: one record for its host, one mark for its later launches, one word for every peer.
#pragma once

#include "protocol/channel.h"

namespace pcie_allreduce {

// Access: elect(Word*) true for the first caller, load, store (relaxed, system scope), fence (system scope).
template <class Access>
PAR_INLINE void publish_fault(const Channel& channel, const Request& request, const Call& at, const Fault& fault,
                              std::uint64_t waited_ns) {
  const Word call = at.number;
  Control* own = control_of(channel.slab[channel.rank]);
  if (!Access::elect(&own->elected)) return;
  Reason reason = fault.reason;
  Word missing = fault.missing;
  Word reporter = channel.rank;
  PAR_ROLLED
  for (Word peer = 0; peer < channel.world; ++peer) {
    const Word word = Access::load(&own->abort[peer]);
    if (!aborts(word, call)) continue;
    reason = abort_reason(word);  // the original culprit, and not a victim that gave up on it
    missing = 1u << abort_culprit(word);
    reporter = peer;
    break;
  }
  Word culprit = 0;
  while (culprit < kMaxWorld - 1 && (missing >> culprit & 1u) == 0) ++culprit;
  PAR_ROLLED
  for (Word peer = 0; peer < channel.world; ++peer) {  // [rank]: the failure mark that this rank's later calls read
    Access::store(&control_of(channel.slab[peer])->abort[channel.rank], abort_word(reason, culprit, call));
  }
  FaultRecord* record = channel.record;
  Access::store(&record->reason, static_cast<Word>(reason));
  Access::store(&record->algorithm, static_cast<Word>(kind_algorithm(request.kind)));
  Access::store(&record->stage, static_cast<Word>(fault.stage));
  Access::store(&record->call, call);
  Access::store(&record->missing, missing);
  Access::store(&record->reporter, reporter);
  Access::store(&record->waited_ms, static_cast<Word>(waited_ns / 1'000'000));
  const Pack ours = Signature{call, request.bytes, request.kind}.pack();
  const Word other = culprit == channel.rank ? reporter : culprit;
  const Pack* theirs = area_of(channel.slab[channel.rank], at.phase, channel.area_packs) +
                       (other == channel.rank ? 0 : source_index(other, channel.rank));
  for (int w = 0; w < 4; ++w) Access::store(&record->ours[w], ours.word[w]);
  for (int w = 0; w < 4; ++w) Access::store(&record->theirs[w], Access::load(&theirs->word[w]));
  Access::fence();
  Access::store(&record->valid, 1);
}

}  // namespace pcie_allreduce
