// Packs whose tests or rewriting are wrong. The protocol finds these functions where it would find its own.
#pragma once

#include "fabric/machine.h"

namespace pcie_allreduce::fabric {

struct OneWordPack : Pack {
  OneWordPack() = default;
  OneWordPack(const Pack& pack) : Pack(pack) {}
};
PAR_INLINE bool arrived(const OneWordPack& pack) { return pack.word[0] != kEmpty; }
PAR_INLINE OneWordPack encoded(const OneWordPack& pack) {
  return pcie_allreduce::encoded(static_cast<const Pack&>(pack));
}

struct RawPack : Pack {
  RawPack() = default;
  RawPack(const Pack& pack) : Pack(pack) {}
};
PAR_INLINE bool arrived(const RawPack& pack) { return pcie_allreduce::arrived(static_cast<const Pack&>(pack)); }
PAR_INLINE RawPack encoded(const RawPack& pack) { return pack; }

// Sums whose zeros are negative, as they are where accumulators start with the first rank's value and nothing is added
// at the end. Rewritten before they are sent, they do no harm.
template <class Element, class PackType>
struct NegativeZeros : Element {
  static PackType rounded(const typename Element::Sum& sum) {
    PackType pack = Element::rounded(sum);
    for (Word& word : pack.word) word = word == 0 ? kEmpty : word;
    return pack;
  }
};

template <class PackType>
struct NegativeZeroElements {
  using Float32 = NegativeZeros<OnPacks<host::PAR_ISA::Float32, PackType>, PackType>;
  using Float16 = NegativeZeros<OnPacks<host::PAR_ISA::Float16, PackType>, PackType>;
  using BFloat16 = NegativeZeros<OnPacks<host::PAR_ISA::BFloat16, PackType>, PackType>;
};

}  // namespace pcie_allreduce::fabric
