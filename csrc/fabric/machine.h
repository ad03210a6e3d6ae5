// The machine interface over a lane, for any unit: what templates need is here, what happens is in lane.cpp.
#pragma once

#include <cstring>

#include "fabric/element.h"
#include "fabric/lane.h"

namespace pcie_allreduce::fabric {

template <class UnitType>
class Machine {
 public:
  using Unit = UnitType;
  static constexpr Word kLooksAtOnce = 1;

  explicit Machine(Lane& lane) : lane_(lane) {}

  Call begin_call() { return lane_.begin_call(); }
  bool barrier(bool failed) { return lane_.meet(failed); }
  bool any_failed(bool failed) { return lane_.any_failed(failed); }
  void end_call(const Call& call, Word used) { lane_.end_call(call, used); }
  bool staged() const { return lane_.staged(); }
  Word block() const { return lane_.block(); }
  Word blocks() const { return lane_.blocks(); }
  Range share(Word units) const { return lane_.share(units); }
  Range hops(Word world) const { return lane_.hops(world); }
  static constexpr int kPlacesAtOnce = 2;
  Range places(Word shard, Word world) const { return lane_.places(shard, world); }
  Range own_places(Word shard, Word world) const { return lane_.own_places(shard, world); }
  Range rearms(Word units) const { return lane_.share(units); }
  Range once_a_block(Word tasks) const { return lane_.once_a_block(tasks); }
  Range once_a_rank(Word tasks) const { return lane_.once_a_rank(tasks); }

  Unit read(const Request& request, Word i) {
    return in_packs<Unit>([&](Word pack) { return lane_.read(request, i * kPacks<Unit> + pack); });
  }
  void write(const Request& request, Word i, const Unit& unit) {
    for (Word p = 0; p < kPacks<Unit>; ++p) lane_.write(request, i * kPacks<Unit> + p, pack_of(unit, p));
  }
  template <class Moved>
  void put(Pack* slot, const Moved& moved) {
    for (Word p = 0; p < kPacks<Moved>; ++p) lane_.put(slot + p, pack_of(moved, p));
  }
  template <class Moved>
  Moved peek(const Pack* slot) {
    return in_packs<Moved>([&](Word pack) { return lane_.peek(slot + pack); });
  }
  void arm(Pack* slot) {
    for (Word p = 0; p < kPacks<Unit>; ++p) lane_.arm(slot + p);
  }
  void fence() { lane_.fence(); }
  void raise(Word* flag, Word count) { lane_.raise(flag, count); }
  bool raised(const Word* flag, Word count) { return lane_.raised(flag, count); }
  Word agreed(Word peer) { return lane_.load(lane_.agreed(peer)); }
  void set_agreed(Word peer, Word call) { lane_.store(lane_.agreed(peer), call); }
  void tell(Word* verdict, Word value) { lane_.tell(verdict, value); }
  std::uint64_t clock_ns() const { return lane_.now(); }
  PeerWait waited(Word peer) const { return lane_.waited(peer); }
  void set_waited(Word peer, const PeerWait& waited) const { lane_.set_waited(peer, waited); }
  WaitVerdict keep_waiting(Wait& wait, const Call& call) { return lane_.keep_waiting(wait, call); }
  void fault(const Fault& fault, const Call& call) { lane_.fault(fault, call); }
  Lane& lane() { return lane_; }

 private:
  template <class Moved>
  static constexpr Word kPacks = sizeof(Moved) / sizeof(Pack);

  template <class Moved>
  static Pack pack_of(const Moved& moved, Word p) {
    Pack pack;
    std::memcpy(&pack, reinterpret_cast<const char*>(&moved) + p * sizeof(Pack), sizeof pack);
    return pack;
  }
  template <class Moved, class Get>
  static Moved in_packs(Get&& get) {
    Moved moved;
    for (Word p = 0; p < kPacks<Moved>; ++p) {
      const Pack pack = get(p);
      std::memcpy(reinterpret_cast<char*>(&moved) + p * sizeof(Pack), &pack, sizeof pack);
    }
    return moved;
  }

  Lane& lane_;
};

}  // namespace pcie_allreduce::fabric
