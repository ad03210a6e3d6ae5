#include "fabric/algorithms.h"

#include <algorithm>

#include "fabric/runners.h"

namespace pcie_allreduce::fabric {
namespace {

bool any_world(Word) { return true; }
bool even_world(Word world) { return world >= 4 && world % 2 == 0; }

constexpr Word kSignature = 1;

Word whole_units(Word packs, Word unit) { return (packs + unit - 1) / unit * unit; }

// Of `packs`, what the owner of shard `which` has.
Word owned(Word packs, Word shard, Word which) { return std::min(packs - std::min(packs, which * shard), shard); }

// And of a chunk to each rank.
Word one_shot_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  return reader == channel.rank ? 0 : kSignature + whole_units(request.units(), unit);
}
Word two_shot_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  if (reader == channel.rank) return 0;
  const Word packs = whole_units(request.units(), unit);
  const Word shard = TwoShotLayout(channel.world, request.units()).shard;
  return kSignature + owned(packs, shard, reader) + owned(packs, shard, channel.rank);
}
Word two_shot_rows_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  if (unit > 1) return two_shot_link(channel, request, unit, reader);  // lines have no rows
  if (reader == channel.rank) return 0;
  const RowParts parts = row_parts(request, channel.world);
  return kSignature + parts.rows * (owned(parts.row, parts.part, reader) + owned(parts.row, parts.part, channel.rank));
}
Word two_shot_rows_laid_out(const Request& request, Word world) { return row_parts(request, world).units(world); }

Word spread_of(const Request& request) { return kind_dtype(request.kind) == Dtype::kFloat32 ? 1 : 2; }
// `owned_by(place)`: packs of an owner.
template <class OwnedBy>
Word link_of_islands(const Channel& channel, const Request& request, Word reader, const OwnedBy& owned_by) {
  if (reader == channel.rank) return 0;
  const Islands& islands = channel.islands;
  if (reader == islands.partner) return kSignature + spread_of(request) * owned_by(islands.place);
  for (Word place = 0; place < channel.world / 2; ++place) {
    if (islands.mates[place] == reader) return kSignature + owned_by(place) + owned_by(islands.place);
  }
  return kSignature;
}
Word island_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  const Word packs = whole_units(request.units(), unit);
  const Word shard = IslandLayout(channel.world, request.units(), spread_of(request)).shard;
  return link_of_islands(channel, request, reader, [&](Word place) { return owned(packs, shard, place); });
}
Word island_rows_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  if (unit > 1) return island_link(channel, request, unit, reader);  // lines have no rows
  const RowParts parts = row_parts(request, channel.world / 2);
  return link_of_islands(channel, request, reader,
                         [&](Word place) { return parts.rows * owned(parts.row, parts.part, place); });
}
Word island_rows_laid_out(const Request& request, Word world) { return row_parts(request, world / 2).units(world / 2); }

// A signature a reader, and once for all readers; two-shot: all shards but its own, and the sums of its own.
Word staged_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  return reader == channel.rank ? (channel.world - 1) * kSignature + whole_units(request.units(), unit) : 0;
}
Word staged_two_shot_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  if (reader != channel.rank) return 0;
  const Word packs = whole_units(request.units(), unit);
  const Word sums = owned(packs, StagedLayout(channel.world, request.units()).shard, channel.rank);
  return staged_link(channel, request, unit, reader) + (channel.sum_copies - 1) * sums;
}
Word pull_link(const Channel& channel, const Request& request, Word unit, Word reader) {
  return reader == channel.rank ? whole_units(request.units(), unit) : kSignature;
}
Word pull_one_shot_reads(const Channel&, const Request& request, Word unit, Word) {
  return whole_units(request.units(), unit);
}
Word pull_two_shot_reads(const Channel& channel, const Request& request, Word unit, Word source) {
  return two_shot_link(channel, request, unit, source) - kSignature;
}

Word greeting_link(const Channel& channel, const Request&, Word, Word reader) {
  return reader == channel.rank ? 0 : kGreetingPacks;
}

std::string data_of(const char* stage, Word rank, Word pack) {
  return std::string(stage) + " of rank " + std::to_string(rank) + ", pack " + std::to_string(pack);
}
std::string one_shot_name(const Channel& channel, const Request& request, Word pack) {
  const Word stride = OneShotLayout(channel.world, request.units()).stride;
  return data_of("data", source_of(pack / stride, channel.rank), pack % stride);
}
std::string staged_name(const Channel& channel, const Request&, Word pack) {
  return data_of("data", channel.rank, pack);
}
std::string two_shot_name(const Channel& channel, const Request& request, Word pack) {
  const Word shard = TwoShotLayout(channel.world, request.units()).shard;
  const Word index = pack / shard;
  const Word others = channel.world - 1;
  return index < others ? data_of("shard", source_of(index, channel.rank), pack % shard)
                        : data_of("sum", source_of(index - others, channel.rank), pack % shard);
}
std::string two_shot_rows_name(const Channel& channel, const Request& request, Word pack) {
  const Word shard = row_parts(request, channel.world).part * row_parts(request, channel.world).rows;
  const Word index = pack / shard;
  const Word others = channel.world - 1;
  return data_of(index < others ? "parts" : "sums", source_of(index % others, channel.rank), pack % shard);
}
std::string name_in_islands(const Channel& channel, const Request& request, Word shard, Word pack) {
  const Word spread = spread_of(request);
  const Islands& islands = channel.islands;
  const Word others = channel.world / 2 - 1;
  const Word index = pack / shard;
  if (index < others) return data_of("shard", islands.mates[source_of(index, islands.place)], pack % shard);
  if (index < others + spread) return data_of("partial", islands.partner, pack % shard);
  return data_of("sum", islands.mates[source_of(index - others - spread, islands.place)], pack % shard);
}
std::string island_name(const Channel& channel, const Request& request, Word pack) {
  return name_in_islands(channel, request, IslandLayout(channel.world, request.units(), 1).shard, pack);
}
std::string island_rows_name(const Channel& channel, const Request& request, Word pack) {
  const RowParts parts = row_parts(request, channel.world / 2);
  return name_in_islands(channel, request, parts.rows * parts.part, pack);
}

}  // namespace

const std::vector<Entry>& algorithms() {
  constexpr Collective kAllReduce = Collective::kAllReduce;
  static const std::vector<Entry> table = {
      {"one_shot", Algorithm::kOneShot, kAllReduce, any_world, run_one_shot, one_shot_link, one_shot_name},
      {"two_shot", Algorithm::kTwoShot, kAllReduce, any_world, run_two_shot, two_shot_link, two_shot_name},
      {"two_shot_rows", Algorithm::kTwoShot, kAllReduce, any_world, run_two_shot_rows, two_shot_rows_link,
       two_shot_rows_name, false, Transport::kPush, nullptr, two_shot_rows_laid_out},
      {"island", Algorithm::kIsland, kAllReduce, even_world, run_island, island_link, island_name},
      {"island_rows", Algorithm::kIsland, kAllReduce, even_world, run_island_rows, island_rows_link, island_rows_name,
       false, Transport::kPush, nullptr, island_rows_laid_out},
      {"staged_one_shot", Algorithm::kOneShot, kAllReduce, any_world, run_staged_one_shot, staged_link, staged_name,
       false, Transport::kStaged},
      {"staged_two_shot", Algorithm::kTwoShot, kAllReduce, any_world, run_staged_two_shot, staged_two_shot_link,
       staged_name, false, Transport::kStaged},
      {"pull_one_shot", Algorithm::kOneShot, kAllReduce, any_world, run_pull_one_shot, pull_link, staged_name, false,
       Transport::kPull, pull_one_shot_reads},
      {"pull_two_shot", Algorithm::kTwoShot, kAllReduce, any_world, run_pull_two_shot, pull_link, staged_name, false,
       Transport::kPull, pull_two_shot_reads},
      {"reduce_scatter", Algorithm::kReduceScatter, Collective::kReduceScatter, any_world, run_reduce_scatter,
       one_shot_link, one_shot_name},
      {"all_gather", Algorithm::kAllGather, Collective::kAllGather, any_world, run_all_gather, one_shot_link,
       one_shot_name},
      {"greeting", Algorithm::kOneShot, Collective::kGreeting, any_world, run_greeting, greeting_link, nullptr},
  };
  return table;
}

Word unit_packs(Mapping mapping) { return mapping == Mapping::kLines ? sizeof(Line) / sizeof(Pack) : 1; }

Word used_packs(const Request& request, Word world, Transport transport, Word sum_copies) {
  return packs_used(kind_algorithm(request.kind), kind_dtype(request.kind), world, request.bytes, transport,
                    sum_copies);
}

Word chunks_in(const Entry& entry, Word world) {
  return !entry.model && entry.collective == Collective::kReduceScatter ? world : 1;
}
Word chunks_out(const Entry& entry, Word world) {
  return !entry.model && entry.collective == Collective::kAllGather ? world : 1;
}
Word most_chunks(const Entry& entry, Word world) { return std::max(chunks_in(entry, world), chunks_out(entry, world)); }

Range pack_shard(Word world, Word rank, Word packs) {
  const Word each = (packs + world - 1) / world;
  return {std::min(rank * each, packs), std::min((rank + 1) * each, packs), 1};
}

const Entry* find_algorithm(const std::string& name) {
  for (const Entry& entry : algorithms()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace pcie_allreduce::fabric
