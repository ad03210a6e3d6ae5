#include "fabric/place.h"

namespace pcie_allreduce::fabric {
namespace {

std::string in_control(const Simulation& simulation, Word word) {
  const Word byte = simulation.memory().offset(word) * sizeof(Word);
  if (byte >= offsetof(Control, elected)) return "its election";
  if (byte >= offsetof(Control, abort)) {
    return "the abort word of rank " + std::to_string((byte - offsetof(Control, abort)) / sizeof(Word));
  }
  return "the state of block " + std::to_string(byte / sizeof(BlockState));
}

std::string in_copy(const Simulation& simulation, Word byte) {
  if (byte < kStagingOffset) {
    const Word flag = (byte - kFlagsOffset) / sizeof(Word);
    return "the flag of rank " + std::to_string(flag % kMaxWorld) + ", block " + std::to_string(flag / kMaxWorld);
  }
  const Word pack = (byte - Word{kStagingOffset}) / Word{sizeof(Pack)};
  const Word copy_packs = simulation.channel(0).copy_packs;
  return "staging copy " + std::to_string(pack / copy_packs) + ", pack " + std::to_string(pack % copy_packs);
}

// A phase is laid out anew by every call: told as the given call lays it out.
std::string in_mailbox(const Simulation& simulation, Word rank, Word word, Word call) {
  const Channel& channel = simulation.channel(rank);
  const Word pack = (simulation.memory().offset(word) * Word{sizeof(Word)} - Word{kMailboxOffset}) / Word{sizeof(Pack)};
  const Word phase = pack / channel.area_packs;
  const Word at = pack % channel.area_packs;
  const std::string told = "phase " + std::to_string(phase) + ", ";
  const Word signatures = channel.transport == Transport::kPush ? kLinePacks : kSignaturePacks;
  if (channel.staged() && at < signatures && at % kLinePacks == 0) {
    return told + "its signature for rank " + std::to_string(at / kLinePacks);
  }
  if (at < channel.world - 1) return told + "signature of rank " + std::to_string(source_of(at, rank));
  const Scenario& scenario = simulation.scenario();
  const Request request = request_of(scenario, rank, call);
  const auto name = scenario.calls[call].algorithm->name_pack;
  if (name == nullptr || at < signatures ||
      at >= used_packs(request, channel.world, channel.transport, channel.sum_copies))
    return told + "pack " + std::to_string(at);
  return told + name(channel, request, at - signatures);
}

}  // namespace

std::string place_of(const Simulation& simulation, Word word, Word call) {
  const Memory& memory = simulation.memory();
  const Word rank = memory.home(word);
  const std::string of = " of rank " + std::to_string(rank);
  if (memory.in_state(word)) return "what it keeps near it" + of;
  if (!memory.in_slab(word)) return (memory.is_verdict(word) ? "the verdict" : "the fault record") + of;
  const Word byte = memory.offset(word) * sizeof(Word);
  if (byte < kGreetingOffset) return in_control(simulation, word) + of;
  if (byte < kMailboxOffset) return "a greeting" + of;
  if (simulation.scenario().transport == Transport::kPull && byte >= kFlagsOffset) {
    return in_copy(simulation, byte) + of;
  }
  const Word last = static_cast<Word>(simulation.scenario().calls.size()) - 1;
  return "mailbox" + of + ", " + in_mailbox(simulation, rank, word, std::min(call, last));
}

}  // namespace pcie_allreduce::fabric
