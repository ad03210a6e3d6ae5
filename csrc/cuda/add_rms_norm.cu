// Residual and RMSNorm alone: behind an all-reduce that they are not fused with, and what the benchmark compares with.
#include "cuda/launch.h"
#include "cuda/quantise.cuh"
#include "cuda/rms_norm.cuh"

namespace pcie_allreduce::cuda {
namespace {

constexpr Word kBlock = 1024;
constexpr Word kMaxItems = kMaxHidden * sizeof(float) / sizeof(Pack) / kBlock;

struct AddRmsNormParams {
  const Pack* in;
  Pack* out;
  Norm norm;
  Word packs;  // of a row
  float inverse_hidden;
};

// A block has a row, a thread every blockDim-th of its packs, kItems at most.
template <class Element, int kItems>
__global__ void __launch_bounds__(kBlock) add_rms_norm_kernel(const __grid_constant__ AddRmsNormParams params) {
  __shared__ __align__(16) float sums[kItems * kBlock / 32];
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();  // it waits for nobody
  const Word row = blockIdx.x * params.packs;
  const Pack* residual = static_cast<const Pack*>(params.norm.residual) + row;
  const Pack* weight = static_cast<const Pack*>(params.norm.weight);
  Pack values[kItems];
  Pack weights[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const Word i = threadIdx.x + k * blockDim.x;
    if (i < params.packs) {
      typename Element::Sum sum;
      Element::add(sum, params.in[row + i]);
      Element::add(sum, residual[i]);
      values[k] = Element::rounded(sum);
      weights[k] = weight[i];
    }
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const Word i = threadIdx.x + k * blockDim.x;
    if (i < params.packs) params.out[row + i] = values[k];
    const float sum = warp_sum(i < params.packs ? Element::squares(values[k]) : 0.0f);
    if (threadIdx.x % 32 == 0 && i < params.packs) sums[i / 32] = sum;
  }
  const float fixed_scale = scale_of_tensor(params.norm);
  __syncthreads();
  const float total = row_total(sums, (params.packs + 31) / 32);
  const float scale = scale_for(total, params.inverse_hidden, params.norm.eps);
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const Word i = threadIdx.x + k * blockDim.x;
    if (i < params.packs) {
      const auto normed = Element::scaled(values[k], weights[k], scale, params.norm.weight_bias);
      store_normed<Element>(params.norm, row + i, normed, fixed_scale);
    }
  }
}

const void* kernel_for(Dtype dtype, Word items) {
  return dispatch<Elements>(dtype, [&]<class Element>() {
    switch (items) {
      case 1: return reinterpret_cast<const void*>(&add_rms_norm_kernel<Element, 1>);
      case 2: return reinterpret_cast<const void*>(&add_rms_norm_kernel<Element, 2>);
      default: return reinterpret_cast<const void*>(&add_rms_norm_kernel<Element, kMaxItems>);
    }
  });
}

}  // namespace

cudaError_t launch_add_rms_norm(const void* in, void* out, Word rows, Word hidden, const Norm& norm, Dtype dtype,
                                bool dependent, cudaStream_t stream) {
  const Word packs = hidden * element_bytes(dtype) / sizeof(Pack);
  const Word items = (packs + kBlock - 1) / kBlock;
  const Word threads = ((packs + items - 1) / items + 31) / 32 * 32;
  const AddRmsNormParams params{static_cast<const Pack*>(in), static_cast<Pack*>(out), norm, packs,
                                1.0f / static_cast<float>(hidden)};
  return launch(kernel_for(dtype, items), &params, {rows, threads - kStewards, dependent}, stream);
}

}  // namespace pcie_allreduce::cuda
