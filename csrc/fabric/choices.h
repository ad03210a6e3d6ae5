// The adversary is one stream of decisions. Zero is always the harmless one (the store arrives at once, the lane goes
// on), and every decision is named by who faced it and when, so that taking one of them back leaves the others in
// place: that is what lets a failure be shrunk.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "protocol/word.h"

namespace pcie_allreduce::fabric {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9E37'79B9'7F4A'7C15u);
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9u;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBu;
    return z ^ (z >> 31);
  }
  Word below(Word count) { return static_cast<Word>((next() >> 32) * count >> 32); }
  Word between(Word low, Word high) { return low + below(high - low + 1); }
  bool once_in(Word count) { return below(count) == 0; }
  template <class Value, std::size_t kCount>
  Value one_of(const Value (&values)[kCount]) {
    return values[below(kCount)];
  }

 private:
  std::uint64_t state_;
};

struct Choice {
  std::uint64_t where;
  Word value;
};

class Choices {
 public:
  explicit Choices(std::uint64_t seed) : random_(seed) {}
  explicit Choices(const std::vector<Choice>& script) : random_(0), replays_(true) {
    for (const Choice& choice : script) script_[choice.where] = choice.value;
  }

  // Within [0, count); not zero with a probability of at most odds / 256.
  Word pick(std::uint64_t where, Word count, Word odds) {
    if (count < 2) return 0;
    const Word value = replays_ ? replayed(where, count) : drawn(count, odds);
    if (value != 0) hostile_.push_back({where, value});
    return value;
  }
  const std::vector<Choice>& hostile() const { return hostile_; }

 private:
  Word drawn(Word count, Word odds) {
    const std::uint64_t bits = random_.next();
    return (bits & 255u) < odds ? 1 + static_cast<Word>((bits >> 32) * (count - 1) >> 32) : 0;
  }
  Word replayed(std::uint64_t where, Word count) const {
    const auto found = script_.find(where);
    return found == script_.end() ? 0 : found->second % count;
  }

  Random random_;
  bool replays_ = false;
  std::unordered_map<std::uint64_t, Word> script_;
  std::vector<Choice> hostile_;
};

}  // namespace pcie_allreduce::fabric
