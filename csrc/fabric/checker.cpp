#include "fabric/checker.h"

#include <algorithm>
#include <cstring>

#include "fabric/algorithms.h"
#include "fabric/simulation.h"
#include "fabric/values.h"
#include "protocol/exchange.h"

namespace pcie_allreduce::fabric {
namespace {

constexpr Word kJunk = 0x4B4B'4B4Bu;  // no sum, and no NaN

std::string ranks_of(Word mask) {
  std::string told;
  for (Word rank = 0; rank < kMaxWorld; ++rank) {
    if (mask >> rank & 1u) told += (told.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return told.empty() ? "nobody" : told;
}

}  // namespace

const char* name_of(Breach breach) {
  switch (breach) {
    case Breach::kNone: return "nothing";
    case Breach::kWrongSum: return "wrong sum";
    case Breach::kRanksDiffer: return "ranks differ";
    case Breach::kHang: return "hang";
    case Breach::kFalseAlarm: return "false alarm";
    case Breach::kDeadlock: return "deadlock";
    case Breach::kEndless: return "endless";
    case Breach::kOvertaken: return "overtaken";
    case Breach::kLinkBytes: return "wrong bytes on a link";
    case Breach::kSentInFailed: return "sent on a failed channel";
    case Breach::kNotNan: return "no NaN on a failed channel";
    case Breach::kVictimNamed: return "victim named";
    case Breach::kNoFault: return "no fault";
    case Breach::kWrongVerdict: return "wrong verdict";
    case Breach::kTornRecord: return "torn record";
    case Breach::kOutside: return "outside of memory";
  }
  return "";
}

Checker::Checker(const Scenario& scenario, const std::vector<Channel>& channels, Memory& memory, Scheduler& scheduler)
    : scenario_(scenario), channels_(channels), memory_(memory), scheduler_(scheduler) {
  const std::size_t calls = scenario.calls.size();
  for (Word call = 0; call < calls; ++call) {
    for (Word rank = 0; rank < scenario.world; ++rank) requests_.push_back(request_of(scenario, rank, call));
  }
  failed_in_.assign(scenario.world, kNever);
  sent_.assign(calls * scenario.world, {});
  read_.assign(calls * scenario.world, {});
  first_output_.resize(calls);
  seen_.resize(scenario.world);
}

void Checker::violate(Breach breach, Word rank, Word call, std::string told) {
  if (violation_.breach == Breach::kNone) violation_ = {breach, rank, call, std::move(told)};
  scheduler_.stop();
}

Word Checker::input_bits(Word rank, Word call, Word element) const {
  const Dtype dtype = kind_dtype(requests_[call * scenario_.world + rank].kind);
  const std::uint64_t hash = mixed(scenario_.values, (std::uint64_t{call} * kMaxWorld + rank) << 32 | element);
  if (scenario_.integers) {
    const int value = input_integer(hash);
    return value == 0 && (hash >> 40 & 1) ? negative_zero(dtype) : integer_bits(value, dtype);
  }
  if (hash % 4 == 0) return hash >> 40 & 1 ? negative_zero(dtype) : 0;
  return static_cast<Word>(hash >> 32) & (dtype == Dtype::kFloat32 ? ~0u : 0xFFFFu);
}

bool Checker::owns(Word rank, const CallPlan& plan, Word element) const {
  const Word pack = pack_elements(plan.dtype);
  const Range mine = pack_shard(scenario_.world, rank, (plan.elements + pack - 1) / pack);
  return element / pack >= mine.first && element / pack < mine.end;
}

bool Checker::expects(Word rank, Word call, Word element) const {
  const CallPlan& plan = scenario_.calls[call];
  if (!plan.algorithm->model || plan.algorithm->collective != Collective::kReduceScatter) return true;
  return owns(rank, plan, element);
}

int Checker::input_value(Word rank, Word call, Word element) const {
  return input_integer(mixed(scenario_.values, (std::uint64_t{call} * kMaxWorld + rank) << 32 | element));
}

int Checker::expected_value(Word rank, Word call, Word element) const {
  const CallPlan& plan = scenario_.calls[call];
  if (chunks_out(*plan.algorithm, scenario_.world) > 1) {
    return input_value(element / plan.elements, call, element % plan.elements);
  }
  if (chunks_in(*plan.algorithm, scenario_.world) > 1) element += rank * plan.elements;
  int sum = 0;
  for (Word source = 0; source < scenario_.world; ++source) {
    if (plan.algorithm->collective == Collective::kAllGather && !owns(source, plan, element)) continue;
    sum += input_value(source, call, element);
  }
  return sum;
}

void Checker::fill_input(Word rank, Word call, std::vector<Pack>& packs) const {
  fill_junk(packs);
  const Request& request = requests_[call * scenario_.world + rank];
  const Word size = element_bytes(kind_dtype(request.kind));
  char* bytes = reinterpret_cast<char*>(packs.data());
  const Word elements = request.bytes / size * chunks_in(*scenario_.calls[call].algorithm, scenario_.world);
  for (Word element = 0; element < elements; ++element) {
    const Word bits = input_bits(rank, call, element);
    std::memcpy(bytes + element * size, &bits, size);
  }
}

void Checker::fill_junk(std::vector<Pack>& packs) const {
  std::fill(packs.begin(), packs.end(), Pack{{kJunk, kJunk, kJunk, kJunk}});
}

void Checker::sent(Word rank, Word call, Word reader) {
  if (reader >= scenario_.world) return;
  ++sent_[call * scenario_.world + rank][reader];
  if (failed_in_[rank] < call) violate(Breach::kSentInFailed, rank, call, "it sent to rank " + std::to_string(reader));
}

void Checker::flagged(Word rank, Word call, Word peer) {
  if (failed_in_[rank] < call)
    violate(Breach::kSentInFailed, rank, call, "it raised a flag at rank " + std::to_string(peer));
}

void Checker::read(Word rank, Word call, Word source) { ++read_[call * scenario_.world + rank][source]; }

void Checker::gave_up(Word rank, Word call, Reason why) {
  if (failed_in_[rank] == kNever) failed_in_[rank] = call;
  const bool another_call = scenario_.trouble == Trouble::kOtherDtype || scenario_.trouble == Trouble::kOtherSize;
  if (scenario_.gives_up() && (struck_ || another_call)) return;
  if (why == Reason::kMismatch) {
    violate(Breach::kFalseAlarm, rank, call, "it found another call's signature, though all ranks make the same calls");
  } else {
    violate(Breach::kHang, rank, call, "it waited until its deadline, though every rank is there");
  }
}

void Checker::completed(Word rank, Word call, const std::vector<Pack>& out) {
  look_at_record(rank);
  check_links(rank, call);
  if (scenario_.calls[call].algorithm->collective != Collective::kGreeting) check_values(rank, call, out);
}

bool Checker::exact(Word rank, Word call, Word first, Word end, const std::vector<Pack>& out) const {
  const bool differs = scenario_.trouble == Trouble::kOtherDtype || scenario_.trouble == Trouble::kOtherSize;
  if (differs && call == scenario_.troubled_call) return false;         // no rank's sum would mean anything
  if (!scenario_.integers && first_output_[call].empty()) return true;  // no rank has completed it to compare with
  const Dtype dtype = kind_dtype(requests_[call * scenario_.world + rank].kind);
  // All-gather hands on a negative zero, or makes it a positive one.
  const Word zero = chunks_out(*scenario_.calls[call].algorithm, scenario_.world) > 1 ? negative_zero(dtype) : 0;
  for (Word element = first; element < end; ++element) {
    const Word bits = element_at(out.data(), element, dtype);
    if (!scenario_.integers) {
      if (bits != element_at(first_output_[call].data(), element, dtype)) return false;
    } else if (expects(rank, call, element)) {
      const Word expected = integer_bits(expected_value(rank, call, element), dtype);
      if (bits != expected && (expected != 0 || bits != zero)) return false;
    }
  }
  return true;
}

void Checker::check_values(Word rank, Word call, const std::vector<Pack>& out) {
  const Request& request = requests_[call * scenario_.world + rank];
  const Dtype dtype = kind_dtype(request.kind);
  const Word elements = request.bytes / element_bytes(dtype);
  const Word chunks = chunks_out(*scenario_.calls[call].algorithm, scenario_.world);
  const bool fails = failed_in_[rank] == call;
  const bool failed = failed_in_[rank] < call;
  if (!scenario_.integers && first_output_[call].empty() && !fails && !failed) first_output_[call] = out;
  for (Word pack = 0; pack < chunks * request.units(); ++pack) {
    Word nans = 0;
    const Word chunk = pack / request.units() * elements;
    const Word first = chunk + pack % request.units() * pack_elements(dtype);
    const Word end = std::min(first + pack_elements(dtype), chunk + elements);
    for (Word e = first; e < end; ++e) nans += element_at(out.data(), e, dtype) == nan_bits(dtype);
    const bool all_nan = nans == end - first;
    if (failed && !all_nan) {
      violate(Breach::kNotNan, rank, call, "pack " + std::to_string(pack) + " of its output is not NaN");
    } else if (!failed && !(fails && all_nan) && !exact(rank, call, first, end, out)) {
      violate(scenario_.integers ? Breach::kWrongSum : Breach::kRanksDiffer, rank, call,
              "pack " + std::to_string(pack) + " of its output is wrong");
    }
  }
  const char* bytes = reinterpret_cast<const char*>(out.data());
  for (std::size_t byte = std::size_t{chunks} * request.bytes; byte < out.size() * sizeof(Pack); ++byte) {
    if (bytes[byte] != static_cast<char>(kJunk & 0xFFu)) {
      violate(Breach::kOutside, rank, call, "it wrote behind its output");
      return;
    }
  }
}

void Checker::check_links(Word rank, Word call) {
  if (failed_in_[rank] <= call) return;  // a failing call may have sent a part; sent() watches the later ones
  const Request& request = requests_[call * scenario_.world + rank];
  const Entry& algorithm = *scenario_.calls[call].algorithm;
  const Word unit = unit_packs(scenario_.mapping);
  for (Word reader = 0; reader < scenario_.world; ++reader) {
    const Word formula = algorithm.link_packs(channels_[rank], request, unit, reader);
    compare_link(rank, call, " packs sent to rank " + std::to_string(reader),
                 sent_[call * scenario_.world + rank][reader], formula);
  }
  for (Word source = 0; source < scenario_.world && algorithm.read_packs != nullptr; ++source) {
    const Word formula = source == rank ? 0 : algorithm.read_packs(channels_[rank], request, unit, source);
    compare_link(rank, call, " packs read from rank " + std::to_string(source),
                 read_[call * scenario_.world + rank][source], formula);
  }
}

void Checker::compare_link(Word rank, Word call, const std::string& what, Word counted, Word formula) {
  if (counted == formula) return;
  violate(Breach::kLinkBytes, rank, call,
          std::to_string(counted) + what + ", the formula says " + std::to_string(formula));
}

// As the host does at any time: what it reads beside a valid word must be the whole story.
void Checker::look_at_record(Word rank) {
  if (seen_[rank].valid == 0) seen_[rank] = *memory_.record(rank);
}

void Checker::check_record(Word rank) {
  const FaultRecord& record = *memory_.record(rank);
  const Word call = failed_in_[rank];
  const Word culprit = 1u << scenario_.troubled_rank;
  if (record.valid == 0) return violate(Breach::kNoFault, rank, call, "it gave up and left no record");
  if (seen_[rank].valid != 0 && std::memcmp(&seen_[rank], &record, sizeof record) != 0) {
    return violate(Breach::kTornRecord, rank, call, "its record changed after it was valid");
  }
  const bool other = scenario_.trouble == Trouble::kOtherDtype || scenario_.trouble == Trouble::kOtherSize;
  const Reason reason =
      other ? Reason::kMismatch : (scenario_.trouble == Trouble::kClosed ? Reason::kClosed : Reason::kTimeout);
  const bool named = record.missing == culprit || (other && record.reporter == scenario_.troubled_rank);
  if (named && record.reason == static_cast<Word>(reason)) return;
  violate(Breach::kVictimNamed, rank, call,
          "its record (reason " + std::to_string(record.reason) + ") names " + ranks_of(record.missing) + " by " +
              ranks_of(1u << record.reporter) + ", the culprit is rank " + std::to_string(scenario_.troubled_rank));
}

void Checker::check_verdict(Word rank) {
  for (Word source = 0; source < scenario_.world; ++source) {
    for (Word index = 0; index < kGreetingPacks && source != rank; ++index) {
      const Greeting greeting = static_cast<Greeting>(memory_.verdict(rank)[source * kGreetingPacks + index]);
      const bool may_miss = struck_ && scenario_.gives_up() && source == scenario_.troubled_rank;
      if (greeting == Greeting::kFine || (may_miss && greeting == Greeting::kMissing)) continue;
      violate(Breach::kWrongVerdict, rank, 0,
              "greeting " + std::to_string(index) + " of rank " + std::to_string(source) + " is judged " +
                  std::to_string(static_cast<Word>(greeting)));
    }
  }
}

void Checker::at_end() {
  if (violation_.breach != Breach::kNone) return;
  for (Word rank = 0; rank < scenario_.world; ++rank) {
    if (scheduler_.dead(rank)) continue;
    if (failed_in_[rank] != kNever) check_record(rank);
    const bool closed = scenario_.trouble == Trouble::kClosed && rank == scenario_.troubled_rank;
    if (scenario_.calls[0].algorithm->collective == Collective::kGreeting && !closed) check_verdict(rank);
  }
}

}  // namespace pcie_allreduce::fabric
