#include "fabric/timeline.h"

#include <cstdio>
#include <map>
#include <tuple>

namespace pcie_allreduce::fabric {
namespace {

std::string hex(Word value) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", value);
  return value == kEmpty ? "EMPTY" : text;
}

std::string hex(const Word (&value)[4]) {
  std::string told;
  for (const Word word : value) told += (told.empty() ? "" : " ") + hex(word);
  return told;
}

std::string in_flight(std::uint64_t mask) {
  if (mask == 0) return "";
  std::string words;
  for (Word w = 0; w < 4; ++w) {
    if (mask >> w & 1u) words += (words.empty() ? "" : ", ") + std::to_string(w);
  }
  return mask == 15 ? " (all on their way)" : " (on their way: word " + words + ")";
}

// Who stored what a lane sees: nobody has to guess whether a word is this call's.
std::string origins(const Event& event) {
  std::string told;
  for (Word w = 0; w < 4; ++w) {
    const LaneId& by = event.origin[w];
    if (w > 0 && by == event.origin[w - 1]) continue;
    told += (told.empty() ? " from " : " / ") + (by == kFill ? "the first fill" : name_of(by));
  }
  return told;
}

const char* reason_of(std::uint64_t reason) {
  static constexpr const char* kReasons[] = {"an abort word", "the deadline", "another signature", "a farewell"};
  return reason < 4 ? kReasons[reason] : "something else";
}

std::string ranks(Word mask) {
  std::string told;
  for (Word rank = 0; rank < kMaxWorld; ++rank) {
    if (mask >> rank & 1u) told += (told.empty() ? "" : ", ") + std::to_string(rank);
  }
  return told;
}

bool has_place(Happened what) {
  return what == Happened::kPuts || what == Happened::kArms || what == Happened::kStores ||
         what == Happened::kArrives || what == Happened::kLooks;
}

std::string deed(const Event& event, const std::string& place) {
  const Word(&value)[4] = event.value;
  switch (event.what) {
    case Happened::kReads:
      return "reads its state: call " + std::to_string(value[0]) + ", phase " + std::to_string(value[1]) + ", " +
             std::to_string(value[2]) + " packs to re-arm" + (value[3] != 0 ? ", channel failed" : "");
    case Happened::kPuts: return "puts " + hex(value) + " -> " + place + in_flight(event.note);
    case Happened::kArms: return "arms " + place + in_flight(event.note);
    case Happened::kStores:
      return "stores " + hex(value[0]) + " -> " + place + (event.note != 0 ? " (on its way)" : "");
    case Happened::kArrives:
      return "  ... its " + hex(value[0]) + " arrives: " + place + " word " + std::to_string(event.word % 4);
    case Happened::kLooks: return "sees " + hex(value) + " in " + place + origins(event);
    case Happened::kWrites: return "writes " + hex(value) + " as pack " + std::to_string(event.word) + " of the output";
    case Happened::kMeets:
      return std::string("comes to the block's barrier") + (event.note != 0 ? ", having failed" : "");
    case Happened::kEnds:
      return "ends the call: block " + std::to_string(value[0]) + " is told call " + std::to_string(value[1]) +
             ", phase " + std::to_string(value[2]);
    case Happened::kAccuses:
      return "gives up by " + std::string(reason_of(event.note)) + ", missing rank " + ranks(value[0]);
    case Happened::kStarves: return "is starved until t=" + std::to_string(event.note);
    case Happened::kFreezes: return "and its whole rank stop until t=" + std::to_string(event.note);
    case Happened::kDies: return "and its whole rank die";
    case Happened::kCompletes: return "was the last: the launch is complete";
    case Happened::kFences: return "fences: all it has stored has arrived";
    case Happened::kCloses: return "closes, and says farewell to its peers";
  }
  return "";
}

}  // namespace

std::string name_of(const LaneId& lane) {
  const std::string call = " of call " + std::to_string(lane.call);
  if (lane.thread == kHostThread)
    return "rank " + std::to_string(lane.rank) + "'s host after call " + std::to_string(lane.call);
  return "r" + std::to_string(lane.rank) + ".b" + std::to_string(lane.block) + ".t" + std::to_string(lane.thread) +
         call;
}

std::vector<std::string> Timeline::told(const std::function<std::string(Word, Word)>& name) const {
  std::vector<std::string> lines;
  std::map<std::tuple<Word, Word, Word, Word, Word>, std::vector<Word>> seen;
  std::string like_this;  // what the last line was about, where more of the same is only counted
  std::size_t more = 0;
  for (const Event& event : events_) {
    const LaneId& by = event.lane;
    if (event.what == Happened::kLooks) {
      std::vector<Word> what(event.value, event.value + 4);
      auto& last = seen[{by.rank, by.call, by.block, by.thread, event.word}];
      if (last == what) continue;
      last = what;
    }
    const std::string place = has_place(event.what) ? name(event.word, by.call) : "";
    const bool arms = event.what == Happened::kArms;
    const bool counted = event.note == 0 && (arms || event.what == Happened::kStores);
    const std::string like = counted ? name_of(by) + (arms ? " arms" : place) : "";
    if (counted && like == like_this) {
      ++more;
      continue;
    }
    if (more > 0) lines.push_back("      ... and " + std::to_string(more) + " more");
    like_this = like;
    more = 0;
    lines.push_back("t=" + std::to_string(event.time) + "  " + name_of(by) + " " + deed(event, place));
  }
  return lines;
}

}  // namespace pcie_allreduce::fabric
