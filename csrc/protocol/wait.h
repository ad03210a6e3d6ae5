// No wait is endless. A lane that waits looks now and then at the clock and at the abort words of its peers; the first
// lane of a rank to give up writes the record that the host turns into a sentence, and tells every peer who is to
// blame.
#pragma once

#include "protocol/mailbox.h"

namespace pcie_allreduce {

#if defined(PCIE_ALLREDUCE_NO_WAITS)  // for measurement only: what Communicator.stats() costs
constexpr bool kCountsWaits = false;
#else
constexpr bool kCountsWaits = true;
#endif

enum class Algorithm : Word {
  kNone = 0,
  kOneShot = 1,
  kTwoShot = 2,
  kIsland = 3,
  kReduceScatter = 4,  // these two: other collectives, each with the one algorithm that it has
  kAllGather = 5,
};
enum class Stage : Word { kSignature = 0, kGather = 1, kScatter = 2, kCross = 3 };
enum class Reason : Word {
  kNone = 0,         // in an abort word: a peer's word ended the wait; `missing` is whom it was for
  kTimeout = 1,      // `missing` has not sent within the deadline
  kMismatch = 2,     // `missing` made another call: `theirs` is its signature
  kClosed = 3,       // `missing` closed its communicator before this call
  kGone = 4,         // the process of `missing` has ended
  kInterrupted = 5,  // `missing` was interrupted by its user while it waited
};

// Calls that may wait warmup_timeout: a rank may compile for minutes before it is in step with the others.
constexpr Word kWarmupCalls = 1000;

// How long a rank that gave up awaits the words of its peers before it says who is to blame: looks at abort words are
// far less apart, and the grace below and this are less than a second.
constexpr std::uint64_t kSettleNs = 300'000'000;

// The abort word that a rank stores into every peer's control page: "since this call, do not wait for me; the one that
// I miss is ...". One word, so that it cannot be torn. 24 bits of the call are enough to compare and to print.
PAR_INLINE Word abort_word(Reason reason, Word culprit, Word call) {
  return 0x8000'0000u | (static_cast<Word>(reason) << 28) | (culprit << 24) | (call & 0x00FF'FFFFu);
}
PAR_INLINE Word abort_culprit(Word word) { return (word >> 24) & 7u; }
PAR_INLINE Reason abort_reason(Word word) { return static_cast<Reason>((word >> 28) & 7u); }
// The calls before may still be completed (wrap-safe) - but who is missed in vain a call ahead sends nothing here
// either.
PAR_INLINE bool aborts(Word word, Word call) {
  return (word >> 31) != 0 &&
         (abort_reason(word) == Reason::kTimeout || static_cast<std::int32_t>((call - word) << 8) >= 0);
}

constexpr Word kNoRows = 1;  // of a call that normalises nothing; a row has eight elements or more

// Everything the ranks must agree on in a call; one pack per (source, destination, call).
struct Signature {
  Word call;
  Word bytes;
  Word kind;  // algorithm, dtype, layout version
  Word row;   // kNoRows, or how many elements have their mean taken together
  PAR_INLINE Pack pack() const { return encoded(Pack{{call, bytes, kind, row}}); }
};
PAR_INLINE bool same(const Pack& a, const Pack& b) {
  return a.word[0] == b.word[0] && a.word[1] == b.word[1] && a.word[2] == b.word[2] && a.word[3] == b.word[3];
}

struct Fault {
  Reason reason;
  Stage stage;
  Word missing;  // sources of the stage; bit r: rank r, where the reason is certain or the stage is kSignature
};

// In host memory, where the host can read it while a kernel runs. `valid` is stored last, behind a system fence.
struct alignas(128) FaultRecord {
  Word valid;
  Word reason;
  Word algorithm;
  Word stage;
  Word call;
  Word missing;
  Word reporter;  // the rank that named the culprit; this rank itself, unless it learned of it by an abort word
  Word waited_ms;
  Word ours[4];    // this rank's signature
  Word theirs[4];  // kMismatch: that of `missing`, or of the reporter where this rank itself is the odd one
};

// A later stage waits for peers that wait themselves. It gives up later than they do, so that of a rank's lanes the one
// that misses the culprit speaks first. One-shot's only stage waits for nobody who waits.
PAR_INLINE constexpr std::uint64_t grace_ns(Algorithm algorithm, Stage stage) {
  if (algorithm == Algorithm::kOneShot) return 0;
  return stage == Stage::kGather ? 400'000'000 : (stage == Stage::kCross ? 200'000'000 : 0);
}

// kLook: it has been a while; is the missing rank making another call?
enum class WaitVerdict { kGoOn, kLook, kOutOfTime, kAborted };

struct Wait {
  std::uint64_t began = 0;  // 0: the clock has not been read yet
  std::uint64_t grace;
  Word polls = 0;
  WaitVerdict due = WaitVerdict::kLook;  // what to do the next time
  PAR_INLINE Wait(Algorithm algorithm, Stage stage) : grace(grace_ns(algorithm, stage)) {}
};

}  // namespace pcie_allreduce
