// What PCIe and the GPU's memory model leave of a store: four-byte words on their way, each arriving when it likes,
// before or after any other, unless it follows an earlier one from the same rank to the same word. A load sees what has
// arrived, and what its own lane has stored.
#pragma once

#include <stdexcept>
#include <vector>

#include "protocol/mailbox.h"
#include "protocol/wait.h"

namespace pcie_allreduce::fabric {

// Who stores: the lane of one launch, in one word, so that the origin of every word of memory can be kept.
struct LaneId {
  std::uint8_t rank, call, block, thread;
  bool operator==(const LaneId&) const = default;
};
constexpr LaneId kFill{255, 255, 255, 255};  // what the host wrote before the first call
constexpr std::uint8_t kHostThread = 254;    // the rank's host, as when it closes

class Watcher {
 public:
  virtual void arrived(Word word, bool late) = 0;

 protected:
  ~Watcher() = default;
};

class Memory {
 public:
  Memory(Word world, Word area_packs, Transport transport, Watcher& watcher);

  char* slab(Word rank) { return reinterpret_cast<char*>(&words_[rank * rank_words_]); }
  // In the rank's own memory: a part of its slab, or beside it where that is staged in host memory.
  Control* state(Word rank) { return staged_ ? reinterpret_cast<Control*>(end_of_slab(rank)) : control_of(slab(rank)); }
  // In memory of the rank's host: the fault record, and the verdict of the greetings.
  FaultRecord* record(Word rank) { return reinterpret_cast<FaultRecord*>(end_of_slab(rank) + state_words_); }
  Word* verdict(Word rank) { return reinterpret_cast<Word*>(record(rank) + 1); }

  Word packs() const { return static_cast<Word>(size_ / 4); }
  Word index(const void* address) const;
  Word home(Word word) const { return word / rank_words_; }
  Word offset(Word word) const { return word % rank_words_; }
  bool is_verdict(Word word) const {
    return offset(word) >= slab_words_ + state_words_ + sizeof(FaultRecord) / sizeof(Word);
  }
  bool in_slab(Word word) const { return offset(word) < slab_words_; }
  bool in_state(Word word) const { return offset(word) >= slab_words_ && offset(word) < slab_words_ + state_words_; }
  // Complete at a launch boundary. Everything else a rank stores is posted: to a peer, or to host memory.
  bool own(Word rank, Word word) const { return home(word) == rank && (staged_ ? in_state(word) : in_slab(word)); }

  Word load(LaneId lane, Word word) const;
  Word delivered(Word word) const { return words_[word]; }
  LaneId origin(Word word) const { return origin_[word]; }

  // False: it is on its way, and `held` says that it is in no hurry.
  bool store(LaneId lane, Word word, Word value, bool at_once, bool held);
  Word exchange(LaneId lane, Word word, Word value);  // atomic, in the rank's own memory

  std::size_t in_flight() const { return flying_.size(); }
  bool held(std::size_t which) const { return stores_[flying_[which]].held; }
  void deliver(std::size_t which);                 // it, or what must arrive before it
  void barrier(Word rank, Word call, Word block);  // its lanes have met
  void fence(LaneId lane);                         // what this lane has stored, and others of its block before they met
  void launch_boundary(Word rank, Word call);      // what the grids up to `call` have stored to their own memory
  void lose(std::size_t which);                    // the machine that sent it is gone
  std::size_t find_posted_by(Word rank) const;     // in_flight() when there is none

 private:
  struct Store {
    Word word, value;
    LaneId lane;
    bool held;
    bool behind_barrier;
    std::uint32_t next;      // the next store to this word, of whichever rank
    std::uint32_t position;  // in flying_, or kNone
  };
  static constexpr std::uint32_t kNone = ~0u;

  Word* end_of_slab(Word rank) { return &words_[rank * rank_words_ + slab_words_]; }
  std::uint32_t first_of(Word rank, Word word) const;
  void remove(std::uint32_t store);
  void apply(std::uint32_t store);
  template <class Matches>
  void deliver_all(Matches&& matches);

  bool staged_;
  Word world_, slab_words_, state_words_, rank_words_;
  Watcher& watcher_;
  std::vector<Word> storage_;
  Word* words_;
  std::size_t size_;
  std::vector<LaneId> origin_;
  std::vector<std::uint32_t> chain_;  // a word's first store in flight
  std::vector<Store> stores_;
  std::vector<std::uint32_t> unused_;
  std::vector<std::uint32_t> flying_;
};

}  // namespace pcie_allreduce::fabric
