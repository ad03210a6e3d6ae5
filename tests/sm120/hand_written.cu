// The one-shot push for bfloat16 as one writes it for this one case: no machine, no lanes, no units. What the kernels
// of csrc/ cost beyond this is the price of writing the protocol once for every machine; test_price.py keeps it within
// 5 %. Same mailbox, same parameters, same promises: signatures, deadlines, abort words, the record, NaN.
#include <cuda_bf16.h>

#include <cstddef>

#include "cuda/launch.h"

namespace by_hand {

using pcie_allreduce::BlockState;
using pcie_allreduce::Control;
using pcie_allreduce::FaultRecord;
using pcie_allreduce::cuda::CallParams;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kEmpty = 0x8000'0000u;
constexpr u32 kThreads = 256;  // that move data, at most
constexpr u32 kStewards = 32;
constexpr u32 kBlocks = PAR_TEST_BLOCKS;  // that a multiprocessor must hold: as of the kernel it is compared with
constexpr u32 kPhases = 3;
constexpr u32 kLines = 128;
constexpr u32 kWarmup = 1000;
constexpr u32 kMailbox = 12288;
constexpr u32 kLinePacks = 8;
constexpr u32 kAbort = offsetof(Control, abort);
constexpr u32 kElected = offsetof(Control, elected);
constexpr u32 kWaited = offsetof(Control, waited);
static_assert(kPhases == pcie_allreduce::kPhases && kLines == pcie_allreduce::kMaxBlocks &&
                  kWarmup == pcie_allreduce::kWarmupCalls && kMailbox == pcie_allreduce::kMailboxOffset &&
                  kLinePacks == pcie_allreduce::kLinePacks && kThreads == pcie_allreduce::cuda::kMaxThreads &&
                  kStewards == pcie_allreduce::cuda::kStewards && sizeof(BlockState) == 32,
              "both kernels are to speak to the same mailbox");

__device__ __forceinline__ uint4 load_system(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ uint4 load_own(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ void store_own(void* to, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}
__device__ __forceinline__ u32 load_system_word(const void* from) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
__device__ __forceinline__ void store_system(void* to, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}
__device__ __forceinline__ void store_system_word(void* to, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v));
}
__device__ __forceinline__ void store_system_words(u32* to, uint4 v) {
  store_system_word(to, v.x);
  store_system_word(to + 1, v.y);
  store_system_word(to + 2, v.z);
  store_system_word(to + 3, v.w);
}
__device__ __forceinline__ u64 clock_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ u32 sendable(u32 word) { return word == kEmpty ? 0u : word; }
__device__ __forceinline__ uint4 sendable(uint4 v) {
  return {sendable(v.x), sendable(v.y), sendable(v.z), sendable(v.w)};
}
__device__ __forceinline__ bool is_whole(uint4 v) {
  return v.x != kEmpty && v.y != kEmpty && v.z != kEmpty && v.w != kEmpty;
}
__device__ __forceinline__ bool equal(uint4 a, uint4 b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; }

struct Sums {
  float low[4];
  float high[4];
};
__device__ __forceinline__ void add(Sums& sums, uint4 v) {
  const u32 word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    sums.low[w] += __uint_as_float(word[w] << 16);
    sums.high[w] += __uint_as_float(word[w] & 0xFFFF'0000u);
  }
}
__device__ __forceinline__ u32 rounded(float low, float high) {  // + 0: no sum is -0.0
  const __nv_bfloat162 pair = __hadd2_rn(__floats2bfloat162_rn(low, high), __nv_bfloat162{});
  return reinterpret_cast<const u32&>(pair);
}

enum : u32 { kNone = 0, kTimeout = 1, kMismatch = 2 };
enum : u32 { kSignatureStage = 0, kGatherStage = 1 };

struct Failure {
  bool happened;
  u32 reason;  // kNone: an abort word knows
  u32 stage;
  u32 missing;
  u64 waited;
};

__device__ __forceinline__ bool aborts(u32 word, u32 call) {
  return word >> 31 != 0 && static_cast<std::int32_t>((call - word) << 8) >= 0;
}

// A wait: how often it has looked, since when, and whether the look to come is its last.
struct Wait {
  u32 polls = 0;
  bool last = false;
  u64 began = 0;
};

// What a lane looks at now and then while it waits. True: it must give up.
template <int kWorld>
__device__ __forceinline__ bool must_give_up(const CallParams& p, const char* own, const char* area, uint4 signature,
                                             uint4 state, u32 settled, u32 stage, u32 missing, Wait& wait,
                                             Failure& failure) {
  const u64 now = clock_ns();
  if (wait.began == 0) wait.began = now;
  failure.waited = now - wait.began;
  failure.stage = stage;
  failure.missing = missing;
  bool aborted = false;
#pragma unroll 1
  for (u32 peer = 0; peer < kWorld; ++peer) aborted |= aborts(load_system_word(own + kAbort + 4 * peer), state.x);
  if (wait.last) {
    u32 absent = 0;  // whoever has not even come is to blame before those who wait for it
#pragma unroll 1
    for (u32 index = 0; index < kWorld - 1; ++index) {
      if (!is_whole(load_system(area + 16 * index))) absent |= 1u << (index + (index >= p.channel.rank));
    }
    if (absent != 0) failure.missing = absent;
    return failure.happened = true;
  }
  failure.reason = aborted ? kNone : kTimeout;
  const u64 deadline = settled < kWarmup ? p.channel.warmup_timeout_ns : p.channel.timeout_ns;
  wait.last = aborted || failure.waited > deadline;
#pragma unroll 1
  for (u32 index = 0; index < kWorld - 1; ++index) {
    const u32 suspect = 1u << (index + (index >= p.channel.rank));
    if ((missing & suspect) == 0) continue;
    const uint4 theirs = load_system(area + 16 * index);
    if (!is_whole(theirs) || equal(theirs, signature)) continue;
    failure.reason = kMismatch;
    failure.missing = suspect;
    return failure.happened = true;
  }
  return false;
}

// How late a peer was: nanoseconds in all, calls, microseconds at most.
__device__ __forceinline__ uint4 longer_by(uint4 waited, u64 ns) {
  const u64 total = (u64{waited.y} << 32 | waited.x) + ns;
  const u32 us = static_cast<u32>(min(ns / 1000, u64{0xFFFF'FFFFu}));
  return {static_cast<u32>(total), static_cast<u32>(total >> 32), waited.z + 1, max(waited.w, us)};
}

template <int kWorld>
__device__ __forceinline__ void publish(const CallParams& p, char* own, const char* area, u32 call, uint4 signature,
                                        Failure& failure) {
  if (atomicExch(reinterpret_cast<u32*>(own + kElected), 1u) != 0) return;
  const u32 rank = p.channel.rank;
  u32 reporter = rank;
#pragma unroll 1
  for (u32 peer = 0; peer < kWorld; ++peer) {
    const u32 word = load_system_word(own + kAbort + 4 * peer);
    if (!aborts(word, call)) continue;
    failure.reason = word >> 28 & 7u;
    failure.missing = 1u << (word >> 24 & 7u);
    reporter = peer;
    break;
  }
  const u32 culprit = failure.missing == 0 ? 7 : min(__ffs(static_cast<int>(failure.missing)) - 1, 7);
  const u32 word = 0x8000'0000u | failure.reason << 28 | culprit << 24 | (call & 0x00FF'FFFFu);
#pragma unroll 1
  for (u32 peer = 0; peer < kWorld; ++peer) store_system_word(p.channel.slab[peer] + kAbort + 4 * rank, word);
  const u32 other = culprit == rank ? reporter : culprit;
  const uint4 theirs = load_system(area + 16 * (other == rank ? 0 : other - (other > rank)));
  FaultRecord* record = p.channel.record;
  store_system_word(&record->reason, failure.reason);
  store_system_word(&record->algorithm, p.request.kind >> 8 & 0xFFu);
  store_system_word(&record->stage, failure.stage);
  store_system_word(&record->call, call);
  store_system_word(&record->missing, failure.missing);
  store_system_word(&record->reporter, reporter);
  store_system_word(&record->waited_ms, static_cast<u32>(failure.waited / 1'000'000));
  store_system_words(record->ours, signature);
  store_system_words(record->theirs, theirs);
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  store_system_word(&record->valid, 1u);
}

template <int kWorld>
__global__ void __launch_bounds__(kThreads + kStewards, kBlocks) hand_written(const __grid_constant__ CallParams p) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const u32 rank = p.channel.rank;
  char* own = p.channel.slab[rank];
  const uint4 state = load_own(own + 32 * blockIdx.x);
  uint2 more;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];"
               : "=r"(more.x), "=r"(more.y)
               : "l"(own + 32 * blockIdx.x + 16));
  const bool dead = load_system_word(own + kAbort + 4 * rank) != 0;
  const u32 call = state.x;
  const u32 phase = state.y;
  const u32 movers = blockDim.x - kStewards;
  const bool steward = threadIdx.x >= movers;
  const u32 lane = threadIdx.x - movers;
  const u32 packs = (p.request.bytes + 15) / 16;
  const u32 first = blockIdx.x * movers + threadIdx.x;
  const u32 step = gridDim.x * movers;
  const u32 stride = (packs + kLinePacks - 1) / kLinePacks * kLinePacks;
  const uint4* in = static_cast<const uint4*>(p.request.in);
  uint4* out = static_cast<uint4*>(p.request.out);

  uint4 ahead{};
  if (!steward && first < packs) ahead = in[first];
  Failure failure{};
  if (!dead) {
    const u64 phase_bytes = u64{p.channel.area_packs} * 16;
    const u64 area_offset = kMailbox + phase * phase_bytes;
    const char* area = own + area_offset;
    const uint4 signature = sendable(uint4{call, p.request.bytes, p.request.kind, 1u});
    if (steward) {
      if (lane < kWorld - 1) {
        const u32 peer = lane + (lane >= rank);
        uint4 waited{};
        const u64 began = clock_ns();
        if (blockIdx.x == 0) {
          waited = load_own(own + kWaited + 16 * peer);
          store_system(p.channel.slab[peer] + area_offset + 16 * (rank - (rank > peer)), signature);
        }
        for (Wait wait;;) {
          const uint4 theirs = load_system(area + 16 * lane);
          if (is_whole(theirs)) {
            if (blockIdx.x == 0) store_own(own + kWaited + 16 * peer, longer_by(waited, clock_ns() - began));
            if (!equal(theirs, signature)) failure = {true, kMismatch, kSignatureStage, 1u << peer, 0};
            break;
          }
          if (++wait.polls % 256 == 0 && must_give_up<kWorld>(p, own, area, signature, state, more.y, kSignatureStage,
                                                              1u << peer, wait, failure)) {
            break;
          }
        }
      }
    } else {
      char* to[kWorld - 1];
#pragma unroll
      for (u32 hop = 1; hop < kWorld; ++hop) {
        const u32 reader = rank + hop < kWorld ? rank + hop : rank + hop - kWorld;
        to[hop - 1] = p.channel.slab[reader] + area_offset + 16 * (kLinePacks + (rank - (rank > reader)) * stride);
      }
      for (u32 i = first; i < packs; i += step) {
        const uint4 mine = sendable(ahead);
        if (i + step < packs) ahead = in[i + step];
#pragma unroll
        for (u32 hop = 1; hop < kWorld; ++hop) store_system(to[hop - 1] + 16 * u64{i}, mine);
      }
      char* used = own + kMailbox + (phase == 0 ? kPhases - 1 : phase - 1) * phase_bytes;
      const u32 stale = phase == 0 ? more.x : phase == 1 ? state.z : state.w;
      for (u32 i = first; i < stale; i += step) store_system(used + 16 * u64{i}, {kEmpty, kEmpty, kEmpty, kEmpty});
      for (u32 i = first; i < packs; i += step) {
        uint4 got[kWorld];
        const uint4 mine = sendable(in[i]);
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) got[source] = mine;
        u32 missing = (1u << kWorld) - 1u & ~(1u << rank);
        const char* slot = area + 16 * (kLinePacks + u64{i});
        for (Wait wait;;) {
#pragma unroll
          for (u32 source = 0; source < kWorld; ++source) {
            if (missing >> source & 1u) got[source] = load_system(slot + 16 * u64{(source - (source > rank)) * stride});
          }
#pragma unroll
          for (u32 source = 0; source < kWorld; ++source) missing &= is_whole(got[source]) ? ~(1u << source) : ~0u;
          if (missing == 0) break;
          if (++wait.polls % 256 == 0 &&
              must_give_up<kWorld>(p, own, area, signature, state, more.y, kGatherStage, missing, wait, failure)) {
            break;
          }
        }
        if (failure.happened) break;
        Sums sums{};
#pragma unroll
        for (u32 source = 0; source < kWorld; ++source) add(sums, got[source]);
        out[i] = {rounded(sums.low[0], sums.high[0]), rounded(sums.low[1], sums.high[1]),
                  rounded(sums.low[2], sums.high[2]), rounded(sums.low[3], sums.high[3])};
      }
    }
    if (failure.happened) publish<kWorld>(p, own, area, call, signature, failure);
  }

  const bool any = __syncthreads_or(dead || failure.happened) != 0;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (any) {
    if (!steward) {
      for (u32 i = first; i < packs; i += step) out[i] = {0x7FFF'7FFFu, 0x7FFF'7FFFu, 0x7FFF'7FFFu, 0x7FFF'7FFFu};
    }
  } else if (steward) {
    const u32 used = kLinePacks + (kWorld - 1) * stride;
    const u32 settled = p.request.captured || more.y == kWarmup ? kWarmup : more.y + 1;
    const u32 next = phase + 1 == kPhases ? 0 : phase + 1;
    const u32 record[3] = {phase == 0 ? used : state.z, phase == 1 ? used : state.w, phase == 2 ? used : more.x};
    for (u32 line = blockIdx.x + lane * gridDim.x; line < kLines; line += kStewards * gridDim.x) {
      char* to = own + 32 * line;
      store_own(to, {call + 1, next, record[0], record[1]});
      asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(to + 16), "r"(record[2]), "r"(settled));
    }
  }
}

template __global__ void hand_written<2>(const __grid_constant__ CallParams);
template __global__ void hand_written<8>(const __grid_constant__ CallParams);

}  // namespace by_hand
