// The only file with asm: one instruction a function, named by operation, order, scope and width. Mailbox accesses are
// strong and of system scope; a "memory" clobber keeps the compiler from moving caller memory across the few that
// order.
#pragma once

#include "protocol/word.h"

namespace pcie_allreduce::ptx {

__device__ __forceinline__ void st_relaxed_sys_v4(Pack* to, const Pack& pack) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(pack.word[0]), "r"(pack.word[1]),
               "r"(pack.word[2]), "r"(pack.word[3]));
}

__device__ __forceinline__ Pack ld_relaxed_sys_v4(const Pack* from) {
  Pack pack;
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(from));
  return pack;
}

__device__ __forceinline__ Pack ld_relaxed_gpu_v4(const Pack* from) {
  Pack pack;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(from));
  return pack;
}

__device__ __forceinline__ void st_relaxed_sys(Word* to, Word value) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(value));
}

__device__ __forceinline__ Word ld_relaxed_sys(const Word* from) {
  Word value;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

__device__ __forceinline__ Word ld_relaxed_gpu(const Word* from) {
  Word value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

__device__ __forceinline__ void st_relaxed_gpu(Word* to, Word value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(value));
}

__device__ __forceinline__ void st_relaxed_gpu_v2(Word* to, Word first, Word second) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(first), "r"(second));
}

__device__ __forceinline__ void st_relaxed_gpu_v4(Pack* to, const Pack& pack) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(pack.word[0]), "r"(pack.word[1]),
               "r"(pack.word[2]), "r"(pack.word[3]));
}

__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ std::uint64_t globaltimer_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Both are no-ops in a launch without a programmatic dependency, and do not exist before sm_90.
__device__ __forceinline__ void nanosleep(Word nanoseconds) { asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds)); }

__device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace pcie_allreduce::ptx
