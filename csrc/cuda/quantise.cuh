// FP8 in place of a norm's own dtype. A group's elements are packs of 16 or 32 lanes next to each other in one warp,
// whatever the launch shape: lanes have packs in their order, and rows, and where there are owners their parts too, are
// whole groups.
#pragma once

#include "cuda/element.cuh"
#include "cuda/ptx.cuh"
#include "protocol/norm.h"

namespace pcie_allreduce::cuda {

template <class Element>
constexpr Word kGroupLanes = group_packs(Element::kBytes);

// Of the lanes that have a group, to all of them; the other half of a warp may be elsewhere.
template <Word kLanes>
__device__ __forceinline__ float largest_of_group(float value) {
  const unsigned lanes = kLanes == 32 ? 0xFFFF'FFFFu : 0xFFFFu << (threadIdx.x & 16u);
#pragma unroll
  for (unsigned apart = kLanes / 2; apart > 0; apart /= 2) {
    value = fmaxf(value, __shfl_xor_sync(lanes, value, apart));
  }
  return value;
}

// The FP8 elements of pack i: half or a quarter of one.
template <class Element>
__device__ __forceinline__ void store_codes(const Norm& norm, Word i, Word first, Word second) {
  if constexpr (Element::kBytes == 2) {
    static_cast<uint2*>(norm.normed)[i] = {first, second};
  } else {
    static_cast<Word*>(norm.normed)[i] = first;
  }
}

// `scale`: of the whole tensor, where that was given.
template <class Element>
__device__ __forceinline__ void store_quantised(const Norm& norm, Word i, const typename Element::Sum& normed,
                                                float scale) {
  constexpr int kCount = sizeof(normed.value) / sizeof(float);
  float inverse = 0;
  if (norm.fp8 == Fp8::kGroups) {
    float largest = 0;
#pragma unroll
    for (int e = 0; e < kCount; ++e) largest = fmaxf(largest, fabsf(normed.value[e]));
    const Scale of_group = scale_of_group(largest_of_group<kGroupLanes<Element>>(largest));
    if (i % kGroupLanes<Element> == 0) norm.scales[i / kGroupLanes<Element>] = of_group.scale;
    inverse = of_group.inverse;
  } else {
    inverse = __frcp_rn(scale);
  }
  Word codes[2]{};
#pragma unroll
  for (int e = 0; e < kCount; e += 2) {  // a zero is +0.0 here too
    codes[e / 4] |=
        ptx::cvt_e4m3x2(__fmaf_rn(normed.value[e], inverse, 0.0f), __fmaf_rn(normed.value[e + 1], inverse, 0.0f))
        << (e % 4 * 8);
  }
  store_codes<Element>(norm, i, codes[0], codes[1]);
}

// What becomes of a pack behind its norm.
template <class Element>
__device__ __forceinline__ void store_normed(const Norm& norm, Word i, const typename Element::Sum& normed,
                                             float scale) {
  Pack* to = ptx::at_hand(static_cast<Pack*>(norm.normed) + i);
  if (norm.fp8 == Fp8::kNone) [[likely]] {
    *to = Element::rounded(normed);
  } else {
    store_quantised<Element>(norm, i, normed, scale);
  }
}

template <class Element>
__device__ __forceinline__ void store_nan(const Norm& norm, Word i) {
  if (norm.fp8 == Fp8::kNone) {
    static_cast<Pack*>(norm.normed)[i] = Element::nan();
    return;
  }
  constexpr Word kFour = kNanE4m3 * 0x0101'0101u;
  store_codes<Element>(norm, i, kFour, kFour);
  if (norm.fp8 == Fp8::kGroups) norm.scales[i / kGroupLanes<Element>] = __uint_as_float(0x7FFF'FFFFu);
}

// Asked for before a wait, for store_normed behind it.
__device__ __forceinline__ float scale_of_tensor(const Norm& norm) {
  return norm.fp8 == Fp8::kTensor ? ptx::ld_weak(norm.scales) : 0.0f;
}

}  // namespace pcie_allreduce::cuda
