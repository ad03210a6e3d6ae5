// The GPU's machine over slabs in host memory: every look crosses the PCIe link, and what is re-armed there must have
// arrived before the call ends. So the first block moves no data, but re-arms and fences, and the last warp of every
// other looks ahead for all.
#pragma once

#include "cuda/machine.cuh"
#include "protocol/staged.h"

namespace pcie_allreduce::cuda {

template <class Element, Word kWorld, Share kShare>
class StagedMachine : public Machine<Element, kShare> {
  using Base = Machine<Element, kShare>;
  using Base::channel_, Base::data_threads, Base::request_, Base::state_;

 public:
  using Base::Base;

  __device__ __forceinline__ static constexpr bool staged() { return true; }
  __device__ __forceinline__ Call begin_call() {
    if (looks_ahead()) {
      if (threadIdx.x < 3) notes()[threadIdx.x] = 0;
      __syncthreads();
    }
    ptx::griddepcontrol_wait();
    const Pack* line = reinterpret_cast<const Pack*>(&channel_.state->block[blockIdx.x]);
    const Pack low = ptx::ld_relaxed_gpu_v4(line);
    const Pack high = ptx::ld_relaxed_gpu_v4(line + 1);
    const Word mark = ptx::ld_relaxed_sys(&channel_.state->abort[channel_.rank]);
    state_ = {low.word[0], low.word[1], {low.word[2], low.word[3], high.word[0]}, high.word[1], high.word[2], 0};
    return {state_.call, state_.phase, used(two_phases_before(state_.phase)), mark != 0};
  }

  // As the base's, with four phases.
  __device__ __forceinline__ void end_call(const Call& call, Word now_used) {
    if (threadIdx.x < data_threads()) return;
    const Word settled = request_.captured || state_.settled == kWarmupCalls ? kWarmupCalls : state_.settled + 1;
    const auto updated = [&](Word phase) { return phase == call.phase ? now_used : used(phase); };
    const Pack low{{call.number + 1, staged_phase_after(call.phase), updated(0), updated(1)}};
    const Pack high{{updated(2), settled, updated(3), 0}};
    const Word lane = threadIdx.x - data_threads();
    for (Word b = blockIdx.x + lane * gridDim.x; b < kMaxBlocks; b += kStewards * gridDim.x) {
      Pack* line = reinterpret_cast<Pack*>(&channel_.state->block[b]);
      ptx::st_relaxed_gpu_v4(line, low);
      ptx::st_relaxed_gpu_v4(line + 1, high);
    }
  }

  __device__ __forceinline__ Range share(Word units) const {
    const bool moves = blockIdx.x > 0 && threadIdx.x < data_threads();
    return {moves ? (blockIdx.x - 1) * data_threads() + threadIdx.x : units, units, (gridDim.x - 1) * data_threads()};
  }
  __device__ __forceinline__ Range rearms(Word units) const {
    return {blockIdx.x == 0 && threadIdx.x < data_threads() ? threadIdx.x : units, units, data_threads()};
  }
  __device__ __forceinline__ Word agreed(Word peer) const { return ptx::ld_relaxed_gpu(&channel_.state->agreed[peer]); }
  __device__ __forceinline__ void set_agreed(Word peer, Word call) const {
    ptx::st_relaxed_gpu(&channel_.state->agreed[peer], call);
  }

  // Reads of host memory queue for the link, so a lane looks at a source only when something of it has come: the
  // stewards look at the last pack of the block's that each source sends, and note down whose is there. Only a hint:
  // every lane then looks at every word of its own, and all of this is bounded, so that nothing but speed depends on
  // it.
  // Of several peers one is mostly late. A single one that is in step is seen a look sooner by lanes that look for
  // themselves, so at first they do. Looks of the stewards would be in their way, so those begin only when a lane has
  // given up on that.
  template <class Sent, class Places>
  __device__ __forceinline__ void look_ahead(Stage stage, bool begun, const Sent& sent, const Places& slots) const {
    if (!looks_ahead() || blockIdx.x == 0 || threadIdx.x < data_threads()) return;
    const Word lane = threadIdx.x - data_threads();
    Word* come = noted(stage);
    if (wait_to_be_asked()) {
      // The others have waited for no signature. They do not wait for this lane either, which may fail.
      if (!begun || lane != 0) return;
      if (ptx::ld_volatile_shared(asked()) == 0) {
        atomicOr(come, ~Word{0});
        return;
      }
    }
    const Word first = (blockIdx.x - 1) * data_threads();
    const Pack* last = nullptr;
    Word last_of = 0;
    Word awaited = 0;
    PAR_ROLLED
    for (Word index = 0; index < kWorld - 1; ++index) {
      const Word source = source_of(index, channel_.rank);
      const Word end = min(sent(source), first + data_threads());
      if (end <= first) continue;
      awaited |= 1u << source;
      if (index == lane) {
        last = slots(end - 1).of(source);
        last_of = 1u << source;
      }
    }
    // All lanes leave together: one that left alone might be held up by the others before it has noted anything down.
    PAR_ROLLED
    for (Word looks = 0; looks < kLooks && (ptx::ld_volatile_shared(come) & awaited) != awaited; ++looks) {
      if (last != nullptr && arrived(ptx::ld_relaxed_sys_v4(last))) {
        atomicOr(come, last_of);
        last = nullptr;
      }
    }
  }
  // Those of the missing sources of which something has come; all of them when nothing has for long.
  __device__ __forceinline__ Word worth_a_look(Stage stage, Word missing) {
    if (!looks_ahead()) return missing;
    if (kWorld == 2 && solo_bytes_ < kSoloBytes) {
      solo_bytes_ += request_.bytes;
      return missing;
    }
    if (wait_to_be_asked()) atomicOr(asked(), 1u);
    const Word* come = noted(stage);
    PAR_ROLLED
    for (Word spins = 0; spins < kSpins; ++spins) {
      const Word now = ptx::ld_volatile_shared(come) & missing;
      if (now != 0 || missing == 0) return now;
    }
    return missing;
  }

 private:
  static constexpr Word kSoloBytes = 256 * 1024;  // 5 us of a link, by all lanes together
  static constexpr Word kFewBytes = 16 * 1024;    // looks at so few packs hold up nobody
  __device__ __forceinline__ bool looks_ahead() const { return kWorld > 2 || request_.bytes > kFewBytes; }
  // From that many bytes on all lanes would ask after a single look.
  __device__ __forceinline__ bool wait_to_be_asked() const { return kWorld == 2 && request_.bytes < kSoloBytes; }
  Word solo_bytes_ = 0;
  static constexpr Word kLooks = 1024;  // a millisecond at least
  static constexpr Word kSpins = 4096;  // 0.1 ms

  __device__ __forceinline__ static Word* notes() {
    __shared__ Word words[3];
    return words;
  }
  // A bit for each source, of the stage of owners and of the last one.
  __device__ __forceinline__ static Word* noted(Stage stage) { return notes() + (stage == Stage::kScatter ? 0 : 1); }
  __device__ __forceinline__ static Word* asked() { return notes() + 2; }

  __device__ __forceinline__ Word used(Word phase) const {
    return phase == 0 ? state_.used[0] : phase == 1 ? state_.used[1] : phase == 2 ? state_.used[2] : state_.used_fourth;
  }
};

}  // namespace pcie_allreduce::cuda
