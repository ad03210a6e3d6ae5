// What must hold, said once for all algorithms. A fault of the checker itself would go unseen, so it computes sums of
// integers in integers, shares no code with the element types, and is tried on planted faults.
#pragma once

#include <string>
#include <vector>

#include "fabric/scenario.h"

namespace pcie_allreduce::fabric {

enum class Breach : Word {
  kNone,
  kWrongSum,     // a pack that is neither the exact sum nor, in a failing call, NaN
  kRanksDiffer,  // in a bit
  kHang,         // a lane waited until its deadline though every rank was there in time
  kFalseAlarm,   // ... or took another rank's call for a different one
  kDeadlock,     // nothing can happen any more, and a call has not ended
  kEndless,
  kOvertaken,     // a launch was complete before its predecessor
  kLinkBytes,     // a link carried more or less than the algorithm's formula
  kSentInFailed,  // a launch on a failed channel sent something
  kNotNan,        // ... or left something else than NaN
  kVictimNamed,   // a fault names a rank that did nothing wrong
  kNoFault,       // a call must have failed, and its rank says nothing
  kWrongVerdict,  // a greeting that came is missing, or another arrived
  kTornRecord,    // the host saw a valid record, and it changed later
  kOutside,       // an access outside of all mailboxes
};
const char* name_of(Breach breach);

struct Violation {
  Breach breach = Breach::kNone;
  Word rank = 0;
  Word call = 0;
  std::string told;
};

// The caller's memory of one rank. It changes from call to call: before a call's turn it holds something else.
struct Caller {
  std::vector<Pack> in;
  std::vector<Pack> out;
};

class Checker {
 public:
  Checker(const Scenario& scenario, const std::vector<Channel>& channels, Memory& memory, Scheduler& scheduler);

  void fill_input(Word rank, Word call, std::vector<Pack>& packs) const;
  void fill_junk(std::vector<Pack>& packs) const;

  void struck() { struck_ = true; }              // the scenario's trouble has come
  void sent(Word rank, Word call, Word reader);  // one pack
  void flagged(Word rank, Word call, Word peer);
  void read(Word rank, Word call, Word source);    // one pack of another rank's slab
  void gave_up(Word rank, Word call, Reason why);  // one of its lanes
  void completed(Word rank, Word call, const std::vector<Pack>& out);
  void at_end();

  void violate(Breach breach, Word rank, Word call, std::string told);
  const Violation& violation() const { return violation_; }

 private:
  static constexpr Word kNever = ~0u;

  bool exact(Word rank, Word call, Word first, Word end, const std::vector<Pack>& out) const;  // elements
  void check_values(Word rank, Word call, const std::vector<Pack>& out);
  void check_links(Word rank, Word call);
  void compare_link(Word rank, Word call, const std::string& what, Word counted, Word formula);
  void look_at_record(Word rank);
  void check_record(Word rank);
  void check_verdict(Word rank);
  Word input_bits(Word rank, Word call, Word element) const;
  int input_value(Word rank, Word call, Word element) const;
  int expected_value(Word rank, Word call, Word element) const;
  bool owns(Word rank, const CallPlan& plan, Word element) const;
  bool expects(Word rank, Word call, Word element) const;

  const Scenario& scenario_;
  const std::vector<Channel>& channels_;
  Memory& memory_;
  Scheduler& scheduler_;
  Violation violation_;
  bool struck_ = false;
  std::vector<Request> requests_;  // [call * world + rank]
  std::vector<Word> failed_in_;
  std::vector<std::array<Word, kMaxWorld>> sent_;  // packs, [call * world + rank][reader]
  std::vector<std::array<Word, kMaxWorld>> read_;  // packs, [call * world + rank][source]
  std::vector<std::vector<Pack>> first_output_;    // of each call, of the first rank to complete it
  std::vector<FaultRecord> seen_;                  // as the host first saw it valid
};

}  // namespace pcie_allreduce::fabric
