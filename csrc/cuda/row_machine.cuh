// The GPU's machine with residual and RMSNorm over one-shot. A team has a row, or several, and keeps them until all
// packs are there: a block, or a cluster of blocks.
#pragma once

#include "cuda/team_machine.cuh"

namespace pcie_allreduce::cuda {

template <class Element, Share kShare, bool kClustered>
class RowMachine : public TeamMachine<Element, kShare> {
  using Base = TeamMachine<Element, kShare>;
  using Base::data_threads;
  using Base::failed_;
  using Base::fixed_scale_;
  using Base::norm_;
  using Base::rows_;
  using Base::sums_;
  using Base::total_;
  static constexpr bool kOnePack = kShare == Share::kOnePack;

 public:
  __device__ __forceinline__ RowMachine(const FusedParams& params, char* shared)
      : Base(params, shared),
        kept_more_(reinterpret_cast<Pack*>(shared + params.rows.sum_bytes) + threadIdx.x),
        team_(kClustered ? ptx::cluster_id() : blockIdx.x),
        lane_((kClustered ? ptx::rank_in_cluster() * data_threads() : 0) + threadIdx.x) {}

  __device__ __forceinline__ Call begin_call() {
    if constexpr (kClustered) {
      return Base::begin_together();
    } else {
      return Base::begin_call();
    }
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
      store_nan<Element>(norm_, i);
    } else if (kOnePack || i == first_) {
      kept_ = pack;
    } else {
      kept_more_[kept_count_++ * data_threads()] = pack;
    }
  }

  __device__ __forceinline__ bool any_failed(bool failed) {
    if constexpr (kClustered) {
      return Base::end_together(failed, [&](bool warp_failed) { sum_squares(warp_failed); });
    } else {
      this->publish();
      if (threadIdx.x < data_threads()) sum_squares(false);
      fixed_scale_ = scale_of_tensor(norm_);
      failed_ = this->meet(failed);
      total_ = row_total(sums_, rows_.groups);
      return failed_;
    }
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
      this->give(i, kept(k), weight, scale);
    }
  }

 private:
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
          this->tell_sum(group, sum, warp_failed);
        } else if (threadIdx.x % 32 == 0) {
          sums_[group] = sum;
        }
      }
      group += rows_.group_step;
    }
  }

  Pack* kept_more_;  // behind the first: this thread's own
  Word kept_count_ = 0;
  Word team_;
  Word lane_;
  Word first_;
  Word end_;
  Pack residual_{};
  Pack weight_{};
  Pack kept_{};
};

}  // namespace pcie_allreduce::cuda
