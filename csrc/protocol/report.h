// The end of a rank: one record for its host, one mark for its later launches, one word for every peer.
//
// When one rank is silent, others miss it, and others miss those. So a rank that gives up says first whom it misses
// itself, and nothing that it has only heard; its peers, whom that word stops, say whom they miss; and then everybody
// follows the accusations to the one who is accused and accuses nobody.
#pragma once

#include "protocol/channel.h"

namespace pcie_allreduce {

// Access: elect(Word*) true for the first caller, load, store (relaxed, system scope), fence (system scope), settle()
// a pause of about kSettleNs, in which others, whose waits end now too, say theirs.

struct Blame {
  Reason reason;
  Word missing;   // bit r: rank r
  Word reporter;  // who says so
};

// What a rank has seen for certain is not weighed against silence: neither its own word nor a peer's.
PAR_INLINE constexpr bool is_certain(Reason reason) { return reason > Reason::kTimeout; }

PAR_INLINE Word lowest(Word mask) {
  Word rank = 0;
  while (rank < kMaxWorld - 1 && (mask >> rank & 1u) == 0) ++rank;
  return rank;
}

// Of two accusations, the better founded: an earlier call's, whose accused has to come before anybody can go on; then
// one that a deadline stands behind.
PAR_INLINE bool is_better_founded(Word word, Word than) {
  const std::int32_t calls = static_cast<std::int32_t>((word - than) << 8);
  return calls < 0 || (calls == 0 && abort_reason(word) > abort_reason(than));
}

// The ranks behind a mask of sources, which island counts by their place.
PAR_INLINE Word ranks_behind(const Channel& channel, Algorithm algorithm, Stage stage, Word sources) {
  if (stage == Stage::kSignature || algorithm != Algorithm::kIsland) return sources;
  if (stage == Stage::kCross) return 1u << channel.islands.partner;
  Word ranks = 0;
  PAR_ROLLED
  for (Word place = 0; place < channel.world / 2; ++place) {
    if (sources >> place & 1u) ranks |= 1u << channel.islands.mates[place];
  }
  return ranks;
}

// Whom a rank blames whose lane waited in vain: ranks that make another call; else those that have not come at all, not
// even with their signature, for an owner that waits for them sends no sums either; else whom it waited for.
template <class Access>
PAR_INLINE Fault accusation(const Channel& channel, const Request& request, const Call& at, const Fault& fault) {
  if (is_certain(fault.reason)) return fault;
  const Pack ours = Signature{at.number, request.bytes, request.kind, request.row}.pack();
  Word absent = 0;
  Word others = 0;
  PAR_ROLLED
  for (Word index = 0; index < channel.world - 1; ++index) {
    const Pack* slot = announcement(channel.staged(), channel, at.phase, index);
    Pack theirs;
    PAR_UNROLL
    for (int w = 0; w < 4; ++w) theirs.word[w] = Access::load(&slot->word[w]);
    const Word source = 1u << source_of(index, channel.rank);
    if (!arrived(theirs)) {
      absent |= source;
    } else if (!same(theirs, ours)) {
      others |= source;
    }
  }
  if (others != 0) return {Reason::kMismatch, fault.stage, others};
  const Word awaited = ranks_behind(channel, kind_algorithm(request.kind), fault.stage, fault.missing);
  return {fault.reason, fault.stage, absent != 0 ? absent : awaited};
}

// `own`: whom this rank misses; Reason::kNone where a peer's word ended its wait before the deadline did, so that
// silence proves nothing yet.
template <class Access>
PAR_INLINE Blame follow_accusations(const Channel& channel, Word call, const Blame& own) {
  Word accusers = 0;
  Word from = channel.rank;
  PAR_ROLLED
  for (Word peer = 0; peer < channel.world; ++peer) {
    const Word word = Access::load(abort_word_of(channel, peer));
    if (!aborts(word, call)) continue;
    if (is_certain(abort_reason(word))) return {abort_reason(word), 1u << abort_culprit(word), peer};
    accusers |= 1u << peer;
    if (own.reason == Reason::kNone && abort_reason(word) == Reason::kTimeout) from = peer;
  }
  Word missing = own.reason == Reason::kNone ? 0 : own.missing & ~accusers;
  Word best = 0;
  Word best_from = from;
  Word seen = 0;
  PAR_ROLLED
  while (missing == 0) {
    const Word word = Access::load(abort_word_of(channel, from));
    if (seen == 0 || is_better_founded(word, best)) {
      best = word;
      best_from = from;
    }
    const Word accused = abort_culprit(word);
    missing = 1u << accused & ~accusers;
    if (missing != 0) break;
    if (seen >> accused & 1u) {  // a circle: somebody was late, and now misses others itself
      missing = 1u << abort_culprit(best);
      from = best_from;
      break;
    }
    seen |= 1u << accused;
    from = accused;
  }
  return {Reason::kTimeout, missing, from};
}

template <class Access>
PAR_INLINE void publish_fault(const Channel& channel, const Request& request, const Call& at, const Fault& of_lane,
                              std::uint64_t waited_ns) {
  const Word call = at.number;
  if (!Access::elect(&channel.state->elected)) return;
  const Fault fault = accusation<Access>(channel, request, at, of_lane);
  Blame blame{fault.reason, fault.missing, channel.rank};
  PAR_ROLLED
  for (Word peer = 0; peer < channel.world; ++peer) {  // [rank]: the failure mark that this rank's later calls read
    Control* told = peer == channel.rank ? channel.state : control_of(channel.slab[peer]);
    Access::store(&told->abort[channel.rank], abort_word(blame.reason, lowest(blame.missing), call));
  }
  if (!is_certain(blame.reason)) {
    Access::settle();
    blame = follow_accusations<Access>(channel, call, blame);
  }
  FaultRecord* record = channel.record;
  Access::store(&record->reason, static_cast<Word>(blame.reason));
  Access::store(&record->algorithm, static_cast<Word>(kind_algorithm(request.kind)));
  Access::store(&record->stage, static_cast<Word>(fault.stage));
  Access::store(&record->call, call);
  Access::store(&record->missing, blame.missing);
  Access::store(&record->reporter, blame.reporter);
  Access::store(&record->waited_ms, static_cast<Word>(waited_ns / 1'000'000));
  const Word culprit = lowest(blame.missing);
  const Word other = culprit == channel.rank ? blame.reporter : culprit;
  const Pack ours = Signature{call, request.bytes, request.kind, request.row}.pack();
  const Pack* theirs =
      announcement(channel.staged(), channel, at.phase, other == channel.rank ? 0 : source_index(other, channel.rank));
  for (int w = 0; w < 4; ++w) Access::store(&record->ours[w], ours.word[w]);
  for (int w = 0; w < 4; ++w) Access::store(&record->theirs[w], Access::load(&theirs->word[w]));
  Access::fence();
  Access::store(&record->valid, 1);
}

}  // namespace pcie_allreduce
