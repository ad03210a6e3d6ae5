// From run-time dtype and world to the compiled kernel, once for every machine.
#pragma once

#include <stdexcept>
#include <string>

#include "protocol/channel.h"

namespace pcie_allreduce {

enum class Dtype : Word { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

PAR_INLINE constexpr Word signature_kind(Algorithm algorithm, Dtype dtype) {
  return (kLayoutVersion << 16) | (static_cast<Word>(algorithm) << 8) | static_cast<Word>(dtype);
}
PAR_INLINE constexpr Algorithm kind_algorithm(Word kind) { return static_cast<Algorithm>((kind >> 8) & 0xFFu); }
PAR_INLINE constexpr Dtype kind_dtype(Word kind) { return static_cast<Dtype>(kind & 0xFFu); }

// visit.template operator()<Element, kWorld>(), with Element out of `Elements` {Float32, Float16, BFloat16}.
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

template <class Elements, class Visit>
auto dispatch(Dtype dtype, Word world, Visit&& visit) {
  switch (dtype) {
    case Dtype::kFloat32: return dispatch_world<typename Elements::Float32>(world, visit);
    case Dtype::kFloat16: return dispatch_world<typename Elements::Float16>(world, visit);
    case Dtype::kBFloat16: return dispatch_world<typename Elements::BFloat16>(world, visit);
    default: throw std::invalid_argument("dtype code " + std::to_string(static_cast<Word>(dtype)) + " is not 0 to 2");
  }
}

}  // namespace pcie_allreduce
