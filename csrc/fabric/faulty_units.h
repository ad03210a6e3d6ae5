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
template <class PackType>
struct NegativeZeros : Element<PackType, 1> {
  static PackType rounded(const Sum& sum) {
    PackType pack = Element<PackType, 1>::rounded(sum);
    for (Word& word : pack.word) word = word == 0 ? kEmpty : word;
    return pack;
  }
};

template <class PackType>
using NegativeZeroElements = SameForHalves<NegativeZeros<PackType>, NegativeZeros<PackType>>;

}  // namespace pcie_allreduce::fabric
