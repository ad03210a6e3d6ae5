// From run-time dtype and world to the compiled kernel, once for every machine.
#pragma once

#include <stdexcept>
#include <string>

#include "protocol/channel.h"

namespace pcie_allreduce {

// Packs that a call uses of a mailbox phase, or of a copy where slabs are read. `bytes`: as Request has them;
// `sum_copies`: staged.
inline Word packs_used(Algorithm algorithm, Dtype dtype, Word world, Word bytes, Transport transport = Transport::kPush,
                       Word sum_copies = 1) {
  const Word packs = Request{nullptr, nullptr, bytes, 0, false}.units();
  if (transport != Transport::kPush) {
    return StagedLayout(algorithm == Algorithm::kTwoShot ? world : 1, packs, sum_copies).used();
  }
  switch (algorithm) {
    case Algorithm::kOneShot:
    case Algorithm::kReduceScatter:
    case Algorithm::kAllGather: return OneShotLayout(world, packs).used();
    case Algorithm::kTwoShot: return TwoShotLayout(world, packs).used();
    case Algorithm::kIsland: return IslandLayout(world, packs, dtype == Dtype::kFloat32 ? 1 : 2).used();
    default:
      throw std::invalid_argument("algorithm code " + std::to_string(static_cast<Word>(algorithm)) + " is not 1 to 5");
  }
}

inline Word owners_of(Algorithm algorithm, Word world) {
  switch (algorithm) {
    case Algorithm::kTwoShot:
    case Algorithm::kReduceScatter:
    case Algorithm::kAllGather: return world;
    case Algorithm::kIsland: return world / 2;
    default: return 1;
  }
}

// Packs that the lanes share: of the payload, of a shard, or of a chunk.
inline Word positions(Algorithm algorithm, Word world, Word bytes) {
  const Word packs = Request{nullptr, nullptr, bytes, 0, false}.units();
  switch (algorithm) {
    case Algorithm::kTwoShot: return TwoShotLayout(world, packs).shard;
    case Algorithm::kIsland: return IslandLayout(world, packs, 1).shard;
    default: return packs;
  }
}

template <class Element, class Visit>
auto dispatch_world(Word world, Visit&& visit) {
  switch (world) {
    case 2: return visit.template operator()<Element, 2>();
    case 3: return visit.template operator()<Element, 3>();
    case 4: return visit.template operator()<Element, 4>();
    case 5: return visit.template operator()<Element, 5>();
    case 6: return visit.template operator()<Element, 6>();
    case 7: return visit.template operator()<Element, 7>();
    case 8: return visit.template operator()<Element, 8>();
    default: throw std::invalid_argument("world size " + std::to_string(world) + " is not within 2 to 8");
  }
}

template <class Element, class Visit>
auto dispatch_half(Word world, Visit&& visit) {
  switch (world) {
    case 4: return visit.template operator()<Element, 2>();
    case 6: return visit.template operator()<Element, 3>();
    case 8: return visit.template operator()<Element, 4>();
    default:
      throw std::invalid_argument("world size " + std::to_string(world) + " does not make two islands of 2 to 4");
  }
}

// visit.template operator()<Element>(), with Element out of `Elements` {Float32, Float16, BFloat16}.
template <class Elements, class Visit>
auto dispatch(Dtype dtype, Visit&& visit) {
  switch (dtype) {
    case Dtype::kFloat32: return visit.template operator()<typename Elements::Float32>();
    case Dtype::kFloat16: return visit.template operator()<typename Elements::Float16>();
    case Dtype::kBFloat16: return visit.template operator()<typename Elements::BFloat16>();
    default: throw std::invalid_argument("dtype code " + std::to_string(static_cast<Word>(dtype)) + " is not 0 to 2");
  }
}

}  // namespace pcie_allreduce
