#include "fabric/odd_algorithms.h"

#include "fabric/faulty_units.h"
#include "fabric/runners.h"
#include "protocol/one_shot.h"
#include "protocol/two_shot.h"

namespace pcie_allreduce::fabric {
namespace {

// Worlds 2 to 4 are enough to find a mistake, and soon compiled.
bool few(Word world) { return world <= 4; }

template <class Elements, class Unit, class Body>
void on_few(Lane& lane, const Channel& channel, const Request& request, Body&& body) {
  on_machine<Elements, Unit>(lane, request, [&]<class Element>(auto& machine) {
    if (channel.world == 2) body.template operator()<Element, 2>(machine);
    if (channel.world == 3) body.template operator()<Element, 3>(machine);
    if (channel.world == 4) body.template operator()<Element, 4>(machine);
  });
}

template <class Elements, class Unit>
Entry odd_one_shot() {
  Entry odd = *find_algorithm("one_shot");
  odd.serves = few;
  odd.run = [](Lane& lane, const Channel& channel, const Request& request, Mapping) {
    on_few<Elements, Unit>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
      one_shot<Element, kWorld>(machine, channel, request);
    });
  };
  return odd;
}

template <class Elements, class Unit>
Entry odd_two_shot() {
  Entry odd = *find_algorithm("two_shot");
  odd.serves = few;
  odd.run = [](Lane& lane, const Channel& channel, const Request& request, Mapping) {
    on_few<Elements, Unit>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
      two_shot<Element, kWorld>(machine, channel, request);
    });
  };
  return odd;
}

// Body: void operator()<Element, kWorld>(machine, channel, request).
template <class Body>
Entry model(const char* name, Collective collective, Body body,
            std::function<Word(const Channel&, const Request&, Word, Word)> link_packs) {
  const auto run = [body](Lane& lane, const Channel& channel, const Request& request, Mapping) {
    on_few<ElementsOf<Pack>, Pack>(lane, channel, request, [&]<class Element, int kWorld>(auto& machine) {
      body.template operator()<Element, kWorld>(machine, channel, request);
    });
  };
  return {name, Algorithm::kOneShot, collective, few, run, std::move(link_packs), nullptr, true};
}

Word owned_packs(Word world, Word rank, Word packs) {
  const Range shard = pack_shard(world, rank, packs);
  return shard.end - shard.first;
}

}  // namespace

const Entry* one_word_one_shot() {
  static const Entry entry = odd_one_shot<ElementsOf<OneWordPack>, OneWordPack>();
  return &entry;
}
const Entry* raw_one_shot() {
  static const Entry entry = odd_one_shot<ElementsOf<RawPack>, RawPack>();
  return &entry;
}
const Entry* negative_zero_two_shot() {
  static const Entry entry = odd_two_shot<NegativeZeroElements<Pack>, Pack>();
  return &entry;
}
const Entry* raw_sums_two_shot() {
  static const Entry entry = odd_two_shot<NegativeZeroElements<RawPack>, RawPack>();
  return &entry;
}

Entry reduce_scatter_model(bool always_one) {
  const auto body = [=]<class Element, int kWorld>(auto& machine, const Channel& channel, const Request& request) {
    reduce_scatter<Element, kWorld>(machine, channel, request, always_one);
  };
  return model("reduce_scatter", Collective::kReduceScatter, body,
               [=](const Channel& channel, const Request& request, Word, Word reader) {
                 if (reader == channel.rank) return 0u;
                 return at_least(always_one, owned_packs(channel.world, reader, request.units()));
               });
}

Entry all_gather_model(bool always_one) {
  const auto body = [=]<class Element, int kWorld>(auto& machine, const Channel& channel, const Request& request) {
    all_gather<Element, kWorld>(machine, channel, request, always_one);
  };
  return model("all_gather", Collective::kAllGather, body,
               [=](const Channel& channel, const Request& request, Word, Word reader) {
                 if (reader == channel.rank) return 0u;
                 return at_least(always_one, owned_packs(channel.world, channel.rank, request.units()));
               });
}

}  // namespace pcie_allreduce::fabric
