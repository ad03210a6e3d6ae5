// One lane of the simulated machine, as csrc/protocol/ sees it. Its meaning is the GPU's (cuda/machine.cuh), statement
// by statement where state is kept; its memory and its time are the fabric's. Virtual, because a planted fault is a
// lane that does one thing wrong.
#pragma once

#include "fabric/scenario.h"

namespace pcie_allreduce::fabric {

class Simulation;
struct Grid;
struct Rank;

class Lane : public Task {
 public:
  Lane(Simulation& simulation, Rank& rank, Grid& grid, Word block, Word thread);
  virtual ~Lane() = default;

  virtual Call begin_call();
  virtual bool meet(bool failed);  // the block's barrier; true when a lane came to it having failed
  virtual bool any_failed(bool failed);
  virtual void end_call(const Call& call, Word used);
  bool staged() const { return channel_.staged(); }
  Dtype dtype() const;
  Word block() const { return id.block; }
  Word blocks() const;
  Range share(Word units) const;
  Range hops(Word world) const;
  Range places(Word shard, Word world) const;
  Range own_places(Word shard, Word world) const;
  virtual Range once_a_block(Word tasks) const;
  virtual Range once_a_rank(Word tasks) const;

  virtual Pack read(const Request& request, Word pack);
  virtual void write(const Request& request, Word pack, const Pack& value);
  virtual void put(Pack* slot, const Pack& value);
  virtual Pack peek(const Pack* slot);
  virtual void arm(Pack* slot);
  virtual void fence();
  void raise(Word* flag, Word count);
  virtual bool raised(const Word* flag, Word count);
  PeerWait waited(Word peer);
  void set_waited(Word peer, const PeerWait& waited);
  void tell(Word* verdict, Word value) { store(verdict, value); }
  virtual WaitVerdict keep_waiting(Wait& wait, const Call& call);
  virtual void fault(const Fault& fault, const Call& call);

  Word load(const Word* word);
  void store(Word* word, Word value);
  virtual Word load_abort(const Word* word) { return load(word); }  // when a fault is published
  bool elect(Word* word);
  void settle();
  std::uint64_t now() const;

  Word* agreed(Word peer) const { return &channel_.state->agreed[peer]; }
  Word* verdict() const;  // of the greetings, in memory of its host

  static Lane& current();

 protected:
  void wait_for_predecessor();
  Call read_state();
  virtual BlockState next_state(const Call& call, Word used) const;
  virtual void write_state(Word first, Word step, const BlockState& state);
  Word store_pack(Pack* slot, const Pack& value);  // bit w: word w is on its way
  Word thread() const { return id.thread; }
  Word stewards() const;  // of a block; 0: every lane does both
  Word steward() const;   // which one this lane is; at least steward_count() when it is none
  Word steward_count() const;
  bool moves_data() const { return thread() < data_threads_; }
  std::uint64_t limit() const;

  Simulation& simulation_;
  Rank& rank_;
  Grid& grid_;
  const Channel& channel_;
  Word data_threads_;
  BlockState state_{};
  std::uint64_t waited_ = 0;
  bool faulted_ = false;
  Fault fault_{};

 private:
  void publish();
  void access();
  bool store_word(Word word, Word value);
};

struct Access {
  static Word load(const Word* word) { return Lane::current().load_abort(word); }
  static void store(Word* word, Word value) { Lane::current().store(word, value); }
  static bool elect(Word* word) { return Lane::current().elect(word); }
  static void fence() { Lane::current().fence(); }
  static void settle() { Lane::current().settle(); }
};

}  // namespace pcie_allreduce::fabric
