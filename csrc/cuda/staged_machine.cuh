// The GPU's machine over slabs in host memory: every look crosses the PCIe link, and what is re-armed there must have
// arrived before the call ends. So the first block moves no data, but re-arms and fences.
#pragma once

#include "cuda/machine.cuh"
#include "protocol/staged.h"

namespace pcie_allreduce::cuda {

template <class Element, Share kShare>
class StagedMachine : public Machine<Element, kShare> {
  using Base = Machine<Element, kShare>;
  using Base::channel_, Base::data_threads, Base::request_, Base::state_;

 public:
  using Base::Base;

  __device__ __forceinline__ static constexpr bool staged() { return true; }
  __device__ __forceinline__ Call begin_call() {
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

  // Until the packs of the first lane of those that wait together have come, it alone looks: where one of a warp's has
  // come, the others mostly have. Only a hint: every lane then looks at every word of its own, and nothing but speed
  // depends on whether the lanes of a warp keep together.
  template <int kSources, class Places>
  __device__ __forceinline__ void await_hint(Word missing, const Places& slots) const {
    if constexpr (kSources == 2) return;  // one source: a look of all lanes takes no longer than one of one lane
    if (threadIdx.x % 32 + 1 == static_cast<unsigned>(__ffs(static_cast<int>(__activemask())))) {
      bool all = false;
      for (Word polls = 0; polls < kHints && !all; ++polls) {
        Pack got[kSources];
#pragma unroll
        for (Word source = 0; source < kSources; ++source) {
          got[source] = {};
          if (missing >> source & 1u) got[source] = ptx::ld_relaxed_sys_v4(slots.of(source));
        }
        all = true;
#pragma unroll
        for (Word source = 0; source < kSources; ++source) all = all && arrived(got[source]);
      }
    }
  }

 private:
  static constexpr Word kHints = 16;  // then everybody looks, at deadlines and peers' words too

  __device__ __forceinline__ Word used(Word phase) const {
    return phase == 0 ? state_.used[0] : phase == 1 ? state_.used[1] : phase == 2 ? state_.used[2] : state_.used_fourth;
  }
};

}  // namespace pcie_allreduce::cuda
