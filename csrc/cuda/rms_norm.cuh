// The mean square of a row, in an order that no launch shape changes: sums of 32 packs, and then these.
#pragma once

#include "cuda/element.cuh"

namespace pcie_allreduce::cuda {

// Of all lanes of a warp, to all of them.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xFFFF'FFFFu, value, apart);
  return value;
}

// Of the sums in shared memory, room for whole fours. Every lane for itself: reads of one address by all are one read.
__device__ __forceinline__ float row_total(const float* sums, Word groups) {
  float4 part{};
#pragma unroll 8
  for (Word group = 0; group < groups; group += 4) {
    const float4 four = *reinterpret_cast<const float4*>(sums + group);
    part.x += four.x;
    part.y += group + 1 < groups ? four.y : 0.0f;
    part.z += group + 2 < groups ? four.z : 0.0f;
    part.w += group + 3 < groups ? four.w : 0.0f;
  }
  return (part.x + part.y) + (part.z + part.w);
}

__device__ __forceinline__ float scale_for(float total, float inverse_hidden, float eps) {
  return rsqrtf(__fmaf_rn(total, inverse_hidden, eps));
}

}  // namespace pcie_allreduce::cuda
