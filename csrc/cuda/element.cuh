// The element types on a GPU: eight (or four) float32 accumulators a pack, one rounding at the end.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "protocol/word.h"

namespace pcie_allreduce::cuda {

template <class To, class From>
__device__ __forceinline__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <int kUnits>
struct Partial {
  static constexpr int kPartialUnits = kUnits;
  struct Sum {
    float value[4 * kUnits] = {};
  };
  // A partial sum in float32, as it travels between islands.
  __device__ __forceinline__ static void partial(const Sum& sum, Pack (&parts)[kPartialUnits]) {
#pragma unroll
    for (int w = 0; w < 4 * kPartialUnits; ++w) parts[w / 4].word[w % 4] = __float_as_uint(sum.value[w]);
  }
  __device__ __forceinline__ static void add_partial(Sum& sum, const Pack (&parts)[kPartialUnits]) {
#pragma unroll
    for (int w = 0; w < 4 * kPartialUnits; ++w) sum.value[w] += __uint_as_float(parts[w / 4].word[w % 4]);
  }
};

struct Float32 : Partial<1> {
  static constexpr Word kBytes = 4;
  __device__ __forceinline__ static void add(Sum& sum, const Pack& pack) {
#pragma unroll
    for (int w = 0; w < 4; ++w) sum.value[w] += __uint_as_float(pack.word[w]);
  }
  __device__ __forceinline__ static Pack rounded(const Sum& sum) {
    Pack pack;
#pragma unroll
    for (int w = 0; w < 4; ++w) pack.word[w] = __float_as_uint(sum.value[w]);
    return pack;
  }
  __device__ __forceinline__ static float squares(const Pack& pack) {
    float even = 0;
    float odd = 0;
#pragma unroll
    for (int w = 0; w < 4; w += 2) {
      even = __fmaf_rn(__uint_as_float(pack.word[w]), __uint_as_float(pack.word[w]), even);
      odd = __fmaf_rn(__uint_as_float(pack.word[w + 1]), __uint_as_float(pack.word[w + 1]), odd);
    }
    return __fadd_rn(even, odd);
  }
  // values * scale * (weights + bias), in this order; a zero is +0.0 here too.
  __device__ __forceinline__ static Sum scaled(const Pack& values, const Pack& weights, float scale, float bias) {
    Sum products;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float weight = __fadd_rn(__uint_as_float(weights.word[w]), bias);
      products.value[w] = __fadd_rn(__fmul_rn(__fmul_rn(__uint_as_float(values.word[w]), scale), weight), 0.0f);
    }
    return products;
  }
  __device__ __forceinline__ static Pack nan() { return {{0x7FFF'FFFFu, 0x7FFF'FFFFu, 0x7FFF'FFFFu, 0x7FFF'FFFFu}}; }
};

template <class Half>
struct Pairs : Partial<2> {
  using Sum = Partial<2>::Sum;
  static constexpr Word kBytes = 2;
  __device__ __forceinline__ static void add(Sum& sum, const Pack& pack) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 pair = Half::widen(pack.word[w]);
      sum.value[2 * w] += pair.x;
      sum.value[2 * w + 1] += pair.y;
    }
  }
  __device__ __forceinline__ static Pack rounded(const Sum& sum) {
    Pack pack;
#pragma unroll
    for (int w = 0; w < 4; ++w) pack.word[w] = Half::narrow(sum.value[2 * w], sum.value[2 * w + 1]);
    return pack;
  }
  __device__ __forceinline__ static float squares(const Pack& pack) {
    float low = 0;
    float high = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 pair = Half::widen(pack.word[w]);
      low = __fmaf_rn(pair.x, pair.x, low);
      high = __fmaf_rn(pair.y, pair.y, high);
    }
    return __fadd_rn(low, high);
  }
  // values * scale * (weights + bias), in this order; to be rounded once.
  __device__ __forceinline__ static Sum scaled(const Pack& values, const Pack& weights, float scale, float bias) {
    Sum products;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 value = Half::widen(values.word[w]);
      const float2 weight = Half::widen(weights.word[w]);
      products.value[2 * w] = __fmul_rn(__fmul_rn(value.x, scale), __fadd_rn(weight.x, bias));
      products.value[2 * w + 1] = __fmul_rn(__fmul_rn(value.y, scale), __fadd_rn(weight.y, bias));
    }
    return products;
  }
  __device__ __forceinline__ static Pack nan() { return {{0x7FFF'7FFFu, 0x7FFF'7FFFu, 0x7FFF'7FFFu, 0x7FFF'7FFFu}}; }
};

// `narrow` adds +0.0: a sum that underflows to -0.0 becomes +0.0, so that zero has one bit pattern and is never EMPTY.
struct BrainHalf {
  __device__ __forceinline__ static float2 widen(Word word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF'0000u)};
  }
  __device__ __forceinline__ static Word narrow(float low, float high) {
    const __nv_bfloat162 zero = bits_as<__nv_bfloat162>(Word{0});
    return bits_as<Word>(__hadd2_rn(__floats2bfloat162_rn(low, high), zero));
  }
};
using BFloat16 = Pairs<BrainHalf>;

struct IeeeHalf {
  __device__ __forceinline__ static float2 widen(Word word) { return __half22float2(bits_as<__half2>(word)); }
  __device__ __forceinline__ static Word narrow(float low, float high) {
    return bits_as<Word>(__hadd2_rn(__floats2half2_rn(low, high), bits_as<__half2>(Word{0})));
  }
};
using Float16 = Pairs<IeeeHalf>;

struct Elements {
  using Float32 = cuda::Float32;
  using Float16 = cuda::Float16;
  using BFloat16 = cuda::BFloat16;
};

}  // namespace pcie_allreduce::cuda
