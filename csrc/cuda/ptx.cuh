// The only file with asm: one instruction a function, named by operation, order, scope and width. Mailbox accesses are
// strong and of system scope; a "memory" clobber keeps the compiler from moving caller memory across the few that
// order.
#pragma once

#include "protocol/e4m3.h"

namespace pcie_allreduce::ptx {

// No instruction: the compiler must have the value here, and knows nothing of it behind.
__device__ __forceinline__ void hide(Word& value) { asm volatile("" : "+r"(value)); }

// The same of the same value: what is found out about it later is not taken apart into how it was made.
__device__ __forceinline__ Word whole(Word value) {
  asm("" : "+r"(value));
  return value;
}

// A pointer into global memory that is at hand here, and not fetched where it is first used.
template <class T>
__device__ __forceinline__ T* at_hand(T* pointer) {
  asm volatile("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

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

// The caller's memory, at this place of the program: a plain load may be moved behind a wait.
__device__ __forceinline__ Pack ld_weak_v4(const Pack* from) {
  Pack pack;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(from));
  return pack;
}

__device__ __forceinline__ float ld_weak(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from));
  return value;
}

__device__ __forceinline__ void st_relaxed_sys(Word* to, Word value) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(value));
}

__device__ __forceinline__ Word ld_relaxed_sys(const Word* from) {
  Word value;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

__device__ __forceinline__ Word ld_acquire_sys(const Word* from) {
  Word value;
  asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
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

__device__ __forceinline__ void nanosleep(Word nanoseconds) { asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds)); }

// Both are no-ops in a launch without a programmatic dependency, and do not exist before sm_90.
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

// Clusters do not exist before sm_90 either; there, what uses them is compiled and never launched.
__device__ __forceinline__ Word cluster_id() {
  Word id = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
#endif
  return id;
}

__device__ __forceinline__ Word rank_in_cluster() {
  Word rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// Of whole warps, both. The arrival orders nothing: a fence here would wait for all stores that are on their way.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Two values, the first in the low byte. There is no such instruction before sm_89.
__device__ __forceinline__ Word cvt_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  std::uint16_t both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
  return both;
#else
  return e4m3(low) | e4m3(high) << 8;
#endif
}

__device__ __forceinline__ Word shared_address(const void* own) {
  return static_cast<Word>(__cvta_generic_to_shared(own));
}

__device__ __forceinline__ Word ld_volatile_shared(const Word* from) {
  Word value;
  asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(value) : "r"(shared_address(from)));
  return value;
}

// A barrier that completes when so many have arrived, and as many bytes have come as they announced. Made by one
// thread, for all blocks of the cluster to use once they have met. Bytes may come before they are announced: whoever
// announces them has not arrived yet.
__device__ __forceinline__ void mbarrier_make(std::uint64_t* barrier, Word arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier, Word announced_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(announced_bytes)
               : "memory");
#endif
}

__device__ __forceinline__ bool mbarrier_is_complete(std::uint64_t* barrier) {
  Word complete = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\t"
      "selp.b32 %0, 1, 0, p;\n\t}"
      : "=r"(complete)
      : "r"(shared_address(barrier))
      : "memory");
#endif
  return complete != 0;
}

// To where `own` lies in this block's shared memory, in that of another block of the cluster, whose barrier counts it.
__device__ __forceinline__ void st_async_cluster(const void* own, std::uint64_t* barrier, Word block, Word value) {
#if __CUDA_ARCH__ >= 900
  Word there;
  Word counts;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counts) : "r"(shared_address(barrier)), "r"(block));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there), "r"(value),
               "r"(counts)
               : "memory");
#endif
}

}  // namespace pcie_allreduce::ptx
