// The GPU's machine with residual and RMSNorm. A team has a row, or several, and keeps them until all packs are there:
// a block, or a cluster of blocks, which put their sums of squares into each other's shared memory. So nothing is read
// back from global memory, and beside the one barrier that ends a call without a norm too there is none.
//
// The squares of a row are summed by 32 packs, and these sums in an order of their own, whatever the launch shape:
// ranks may shape their launches as they like, and get the same bits.
#pragma once

#include "cuda/machine.cuh"
#include "cuda/rms_norm.cuh"

namespace pcie_allreduce::cuda {

template <class Element, Share kShare, bool kClustered>
class RowMachine : public Machine<Element, kShare> {
  using Base = Machine<Element, kShare>;
  using Base::data_threads;
  static constexpr bool kOnePack = kShare == Share::kOnePack;

 public:
  __device__ __forceinline__ RowMachine(const FusedParams& params, char* shared)
      : Base(params.channel, params.request),
        norm_(params.norm),
        rows_(params.rows),
        sums_(reinterpret_cast<float*>(shared)),
        kept_more_(reinterpret_cast<Pack*>(shared + params.rows.sum_bytes) + threadIdx.x),
        team_(kClustered ? ptx::cluster_id() : blockIdx.x),
        lane_((kClustered ? ptx::rank_in_cluster() * data_threads() : 0) + threadIdx.x) {}

  __device__ __forceinline__ Call begin_call() {
    const Call call = Base::begin_call();
    if constexpr (kClustered) {
      if (threadIdx.x == 0) ptx::mbarrier_make(meeting(), blockDim.x / 32, rows_.cluster_bytes);
      __syncwarp();
      ptx::cluster_arrive_relaxed();  // nobody's shared memory is written before all blocks have started
    }
    return call;
  }

  __device__ __forceinline__ auto share(Word units) {
    const Word row = team_ * rows_.packs;
    end_ = rows_.stacked ? units : row + rows_.packs;
    first_ = threadIdx.x < data_threads() && lane_ < rows_.packs ? row + lane_ : units;
    if (first_ < end_) {  // asked for now, so that they are here when the peers' packs are
      residual_ = ptx::ld_weak_v4(static_cast<const Pack*>(norm_.residual) + first_);
      weight_ = ptx::ld_weak_v4(static_cast<const Pack*>(norm_.weight) + lane_);
    }
    return Part<decltype(step())>{first_, end_, step()};
  }

  __device__ __forceinline__ void add_residual(Word i, typename Element::Sum& sum) const {
    if (kOnePack || i == first_) {
      Element::add(sum, residual_);
    } else {
      Element::add(sum, ptx::ld_weak_v4(static_cast<const Pack*>(norm_.residual) + i));
    }
  }

  __device__ __forceinline__ void write(const Request& request, Word i, const Pack& pack) {
    Base::write(request, i, pack);
    if (failed_) {
      static_cast<Pack*>(norm_.normed)[i] = pack;  // NaN
    } else if (kOnePack || i == first_) {
      kept_ = pack;
    } else {
      kept_more_[kept_count_++ * data_threads()] = pack;
    }
  }

  __device__ __forceinline__ bool any_failed(bool failed) {
    this->publish();
    if constexpr (kClustered) {
      __syncwarp();
      ptx::cluster_wait();  // for the arrivals of begin_call
      const bool warp_failed = __any_sync(kAll, failed) != 0;
      if (threadIdx.x < data_threads()) {
        sum_squares(warp_failed);
      } else {
        tell_cluster(sums_ + rows_.told_at + ptx::rank_in_cluster(), warp_failed ? kFailed : 0);
      }
      // For warps without a pack too: the stewards may advance the state when all have read it.
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(meeting());
      while (!ptx::mbarrier_is_complete(meeting())) {
      }
      total_ = row_total(sums_, rows_.groups);
      failed_ = cluster_failed();
      ptx::griddepcontrol_launch_dependents();
    } else {
      if (threadIdx.x < data_threads()) sum_squares(false);
      failed_ = this->meet(failed);
      total_ = row_total(sums_, rows_.groups);
    }
    return failed_;
  }

  __device__ __forceinline__ void end_call(const Call& call, Word used) {
    Base::end_call(call, used);  // by the stewards
    float scale = scale_for(total_, rows_.inverse_hidden, norm_.eps);
    Word k = 0;
    for (Word i = first_; i < end_; i += step(), ++k) {
      const bool first = kOnePack || k == 0;
      if (!first && rows_.stacked) {
        scale = scale_for(row_total(sums_ + k * rows_.group_step, rows_.groups), rows_.inverse_hidden, norm_.eps);
      }
      const Pack weight = first || rows_.stacked
                              ? weight_
                              : ptx::ld_weak_v4(static_cast<const Pack*>(norm_.weight) + lane_ + k * rows_.step);
      static_cast<Pack*>(norm_.normed)[i] = Element::scaled(kept(k), weight, scale, norm_.weight_bias);
    }
  }

 private:
  static constexpr unsigned kAll = 0xFFFF'FFFFu;
  static constexpr Word kFailed = 0xFFFF'DEADu;  // a NaN in the place of a sum, and none that arithmetic gives

  __device__ __forceinline__ static std::uint64_t* meeting() {
    __shared__ std::uint64_t barrier;
    return &barrier;
  }
  // From one pack of a lane to its next.
  __device__ __forceinline__ auto step() const {
    if constexpr (kOnePack) {
      return Never{};
    } else {
      return rows_.step;
    }
  }
  __device__ __forceinline__ Pack kept(Word k) const {
    return kOnePack || k == 0 ? kept_ : kept_more_[(k - 1) * data_threads()];
  }

  // Of every 32 packs of a row, into the shared memory of every block of the team.
  __device__ __forceinline__ void sum_squares(bool warp_failed) const {
    const Word items = kOnePack ? 1 : rows_.items;
    Word group = lane_ / 32;
    for (Word k = 0; k < items; ++k) {
      const bool there = first_ + k * rows_.step < end_;
      const float sum = warp_sum(there ? Element::squares(kept(k)) : 0.0f);
      if ((rows_.stacked ? lane_ / 32 : group) < rows_.groups) {
        if constexpr (kClustered) {
          tell_cluster(sums_ + group, warp_failed ? kFailed : __float_as_uint(sum));
        } else if (threadIdx.x % 32 == 0) {
          sums_[group] = sum;
        }
      }
      group += rows_.group_step;
    }
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

  const Norm& norm_;
  const Rows& rows_;
  float* sums_;
  Pack* kept_more_;  // behind the first: this thread's own
  Word kept_count_ = 0;
  Word team_;
  Word lane_;
  Word first_;
  Word end_;
  bool failed_ = false;
  float total_ = 0;  // of the squares of the team's first row
  Pack residual_{};
  Pack weight_{};
  Pack kept_{};
};

}  // namespace pcie_allreduce::cuda
