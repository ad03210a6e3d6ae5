// The GPU's machine with residual and RMSNorm over two-shot and island. Every owner has a part of every row, and a
// cluster of blocks has a row, each of its lanes one pack. Owners add the residual and round; every rank repeats the
// norm from the sums that it was sent, since one more stage would cost more than that.
#pragma once

#include "cuda/team_machine.cuh"
#include "protocol/owners.h"

namespace pcie_allreduce::cuda {

// Owners are ranks, or places in an island; `own` is this rank's.
template <class Element, int kOwners>
class PartMachine : public TeamMachine<Element, Share::kOnePack> {
  using Base = TeamMachine<Element, Share::kOnePack>;
  using Base::data_threads;
  using Base::failed_;
  using Base::norm_;
  using Base::rows_;
  using Base::total_;

 public:
  __device__ __forceinline__ PartMachine(const FusedParams& params, char* shared, Word own)
      : Base(params, shared), own_(own), row_(ptx::cluster_id()) {}

  __device__ __forceinline__ Call begin_call() { return Base::begin_together(); }

  // Parts are whole lines, so an owner's parts of all rows are what the protocol calls its shard.
  __device__ __forceinline__ RowParts parts() const { return {rows_.packs, rows_.part, rows_.count}; }
  __device__ __forceinline__ Word place_of(Word, Word) const { return at_; }  // a lane has one; after `places`
  __device__ __forceinline__ auto places(Word shard, Word owners) {
    const Word place = ptx::rank_in_cluster() * (data_threads() / owners) + this->place_in_block(owners);
    const auto hops = this->hops(owners);
    const Word owner = after(own_, hops.first + 1, kOwners);
    if (hops.first < owners && place < rows_.part) at_ = parts().place_of(owner, row_, place);
    if (hops.first < owners && place / 32 < rows_.part_groups) group_ = owner * rows_.part_groups + place / 32;
    if (at_ != kNowhere) {  // asked for now, so that they are here when the peers' packs are
      if (owner == own_) residual_ = ptx::ld_weak_v4(static_cast<const Pack*>(norm_.residual) + at_);
      weight_ = ptx::ld_weak_v4(static_cast<const Pack*>(norm_.weight) + (at_ - row_ * rows_.packs));
    }
    place_ = place < rows_.part ? row_ * rows_.part + place : shard;
    return Part<Never>{place_, shard, {}};
  }
  __device__ __forceinline__ auto own_places(Word shard, Word owners) {
    return Part<Never>{this->hops(owners).first + 1 == owners ? place_ : shard, shard, {}};
  }

  __device__ __forceinline__ void add_residual(Word, typename Element::Sum& sum) const { Element::add(sum, residual_); }

  __device__ __forceinline__ void write(const Request& request, Word i, const Pack& pack) {
    Base::write(request, i, pack);
    if (failed_) {
      store_nan<Element>(norm_, i);
    } else {
      kept_ = pack;
    }
  }

  __device__ __forceinline__ bool any_failed(bool failed) {
    return Base::end_together(failed, [&](bool warp_failed) {
      const float sum = warp_sum(at_ != kNowhere ? Element::squares(kept_) : 0.0f);
      if (group_ != kNowhere) this->tell_sum(group_, sum, warp_failed);
    });
  }

  __device__ __forceinline__ void end_call(const Call& call, Word used) {
    Base::end_call(call, used);  // by the stewards
    if (at_ == kNowhere) return;
    const float scale = scale_for(total_, rows_.inverse_hidden, norm_.eps);
    this->give(at_, kept_, weight_, scale);
  }

 private:
  Word own_;
  Word row_;
  Word place_ = 0;
  Word at_ = kNowhere;     // this lane's pack
  Word group_ = kNowhere;  // of the sums of squares, that of its warp
  Pack residual_{};
  Pack weight_{};
  Pack kept_{};
};

}  // namespace pcie_allreduce::cuda
