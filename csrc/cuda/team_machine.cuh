// Blocks of a cluster that have rows together: their sums of squares, and whether they have failed, go straight into
// each other's shared memory, and a barrier there counts what has come. So nothing is read back from global memory, and
// beside the one barrier that ends a call without a norm too there is none.
//
// The squares of a row are summed by the packs of 32 lanes, and these sums in an order of their own, whatever the
// launch shape: ranks may shape their launches as they like, and get the same bits.
#pragma once

#include "cuda/machine.cuh"
#include "cuda/quantise.cuh"
#include "cuda/rms_norm.cuh"

namespace pcie_allreduce::cuda {

template <class Element, Share kShare>
class TeamMachine : public Machine<Element, kShare> {
  using Base = Machine<Element, kShare>;

 protected:
  using Base::data_threads;
  static constexpr unsigned kAll = 0xFFFF'FFFFu;

  __device__ __forceinline__ TeamMachine(const FusedParams& params, char* shared)
      : Base(params.channel, params.request),
        norm_(params.norm),
        rows_(params.rows),
        sums_(reinterpret_cast<float*>(shared)) {}

  __device__ __forceinline__ Call begin_together() {
    const Call call = Base::begin_call();
    if (threadIdx.x == 0) ptx::mbarrier_make(meeting(), blockDim.x / 32);
    __syncwarp();
    ptx::cluster_arrive_relaxed();  // nobody's shared memory is written before all blocks have started
    return call;
  }

  // `sum_squares(warp_failed)` tells the cluster the sums of a warp that moves data. True: a lane of the cluster has
  // failed.
  template <class SumSquares>
  __device__ __forceinline__ bool end_together(bool failed, const SumSquares& sum_squares) {
    this->publish();
    __syncwarp();
    ptx::cluster_wait();  // for the arrivals of begin_together
    const bool warp_failed = __any_sync(kAll, failed) != 0;
    if (threadIdx.x < data_threads()) {
      sum_squares(warp_failed);
    } else {
      tell_cluster(sums_ + rows_.told_at + ptx::rank_in_cluster(), warp_failed ? kFailed : 0);
    }
    // For warps without a pack too: the stewards may advance the state when all have read it.
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(meeting(), threadIdx.x == 0 ? rows_.cluster_bytes : 0);
    fixed_scale_ = scale_of_tensor(norm_);
    while (!ptx::mbarrier_is_complete(meeting())) {
    }
    total_ = row_total(sums_, rows_.groups);
    failed_ = cluster_failed();
    ptx::griddepcontrol_launch_dependents();
    return failed_;
  }

  __device__ __forceinline__ void tell_sum(Word group, float sum, bool warp_failed) const {
    tell_cluster(sums_ + group, warp_failed ? kFailed : __float_as_uint(sum));
  }

  __device__ __forceinline__ void give(Word i, const Pack& values, const Pack& weight, float scale) const {
    store_normed<Element>(norm_, i, Element::scaled(values, weight, scale, norm_.weight_bias), fixed_scale_);
  }

  const Norm& norm_;
  const Rows& rows_;
  float* sums_;
  bool failed_ = false;
  float total_ = 0;  // of the squares of the team's first row
  float fixed_scale_ = 0;

 private:
  static constexpr Word kFailed = 0xFFFF'DEADu;  // a NaN in the place of a sum, and none that arithmetic gives

  __device__ __forceinline__ static std::uint64_t* meeting() {
    __shared__ std::uint64_t barrier;
    return &barrier;
  }

  __device__ __forceinline__ void tell_cluster(const float* place, Word value) const {
    const Word block = threadIdx.x % 32;
    if (block < rows_.cluster) ptx::st_async_cluster(place, meeting(), block, value);
  }

  // What the stewards say, and what a warp says that failed: it has a part of the team's first row.
  __device__ __forceinline__ bool cluster_failed() const {
    Word said = 0;
#pragma unroll
    for (Word block = 0; block < kMaxCluster; ++block) {
      if (block < rows_.cluster) said |= __float_as_uint(sums_[rows_.told_at + block]);
    }
    if (isnan(total_)) {
      PAR_ROLLED
      for (Word group = 0; group < rows_.groups; ++group) said |= __float_as_uint(sums_[group]) == kFailed;
    }
    return said != 0;
  }
};

}  // namespace pcie_allreduce::cuda
