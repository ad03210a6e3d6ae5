// Nothing wider than an aligned 4-byte word may be assumed whole at the far side of PCIe, and two stores may arrive in
// either order. So every word of a pack itself says whether it has arrived: it starts as EMPTY, which no sender sends.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define PAR_INLINE __host__ __device__ __forceinline__
#define PAR_COLD __host__ __device__ __forceinline__  // a call would cost a kernel its registers
#define PAR_UNROLL _Pragma("unroll")
#define PAR_ROLLED _Pragma("unroll 1")
#else
#define PAR_INLINE inline __attribute__((always_inline))
#define PAR_COLD __attribute__((noinline, cold))
#define PAR_UNROLL _Pragma("GCC unroll 8")
#define PAR_ROLLED
#endif

namespace pcie_allreduce {

using Word = std::uint32_t;

struct alignas(16) Pack {
  Word word[4];
};
static_assert(sizeof(Pack) == 16 && alignof(Pack) == 16, "a pack is one 128-bit access");

// -0.0 in float32, and the pair (low +0.0, high -0.0) in the 16-bit types: a value that a sum never needs.
constexpr Word kEmpty = 0x8000'0000u;

PAR_INLINE Pack empty_pack() { return {{kEmpty, kEmpty, kEmpty, kEmpty}}; }

// Before every send, in every stage. +0.0 adds like -0.0 to an accumulator that starts at +0.0f.
PAR_INLINE Word encoded(Word word) { return word == kEmpty ? 0u : word; }
PAR_INLINE Pack encoded(const Pack& pack) {
  return {{encoded(pack.word[0]), encoded(pack.word[1]), encoded(pack.word[2]), encoded(pack.word[3])}};
}

// All four words: a pack may be torn, whatever one of them says.
PAR_INLINE bool arrived(const Pack& pack) {
  return pack.word[0] != kEmpty && pack.word[1] != kEmpty && pack.word[2] != kEmpty && pack.word[3] != kEmpty;
}

}  // namespace pcie_allreduce
