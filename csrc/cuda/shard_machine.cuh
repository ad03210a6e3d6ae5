// The GPU's machine with residual and RMSNorm over two-shot: every rank owns a part of every row, and a block has a
// row. So one lane has the same place in all parts of its row, and the norm, which every rank repeats from the sums
// that it was sent, needs no other block.
#pragma once

#include "cuda/machine.cuh"
#include "cuda/rms_norm.cuh"

namespace pcie_allreduce::cuda {

template <class Element, int kWorld>
class ShardMachine : public Machine<Element, Share::kOnePack> {
  using Base = Machine<Element, Share::kOnePack>;
  using Base::data_threads;

 public:
  __device__ __forceinline__ ShardMachine(const FusedParams& params, char* shared)
      : Base(params.channel, params.request),
        norm_(params.norm),
        rows_(params.rows),
        sums_(reinterpret_cast<float*>(shared)),
        kept_(reinterpret_cast<Pack*>(shared + params.rows.sum_bytes)),
        row_(blockIdx.x * params.rows.packs) {}

  // Parts are whole lines, so a rank's parts of all rows are what the plain algorithm calls its shard.
  __device__ __forceinline__ Word laid_out() const { return gridDim.x * rows_.part * kWorld; }
  __device__ __forceinline__ Word place_of(Word owner, Word) const {
    const Word at = owner * rows_.part + threadIdx.x;
    return at < rows_.packs ? row_ + at : ~0u;
  }

  __device__ __forceinline__ auto share(Word shard) {
    has_part_ = threadIdx.x < rows_.part;
    if (has_part_) {  // asked for now, so that they are here when the peers' packs are
      const Word own = place_of(this->channel_.rank, 0);
      if (own != ~0u) residual_ = ptx::ld_weak_v4(static_cast<const Pack*>(norm_.residual) + own);
      for_each_pack(
          [&](Word at) { ptx::cp_async(kept_ + rows_.packs + at, static_cast<const Pack*>(norm_.weight) + at); });
    }
    return Part<Never>{has_part_ ? blockIdx.x * rows_.part + threadIdx.x : shard, shard, {}};
  }

  __device__ __forceinline__ void add_residual(Word, typename Element::Sum& sum) const { Element::add(sum, residual_); }

  __device__ __forceinline__ void write(const Request& request, Word i, const Pack& pack) {
    Base::write(request, i, pack);
    if (failed_) {
      static_cast<Pack*>(norm_.normed)[i] = pack;  // NaN
    } else {
      kept_[i - row_] = pack;
    }
  }

  __device__ __forceinline__ bool any_failed(bool failed) {
    this->publish();
    if (threadIdx.x < data_threads()) {
      float sum = 0;
      if (has_part_ && !failed) for_each_pack([&](Word at) { sum = __fadd_rn(sum, Element::squares(kept_[at])); });
      sum = warp_sum(sum);
      if (threadIdx.x % 32 == 0) sums_[threadIdx.x / 32] = sum;
    }
    return failed_ = this->meet(failed);
  }

  __device__ __forceinline__ void end_call(const Call& call, Word used) {
    Base::end_call(call, used);  // by the stewards
    if (!has_part_) return;
    const float total = row_total(sums_, rows_.groups);
    const float scale = scale_for(total, rows_.inverse_hidden, norm_.eps);
    ptx::cp_async_wait();
    for_each_pack([&](Word at) {
      static_cast<Pack*>(norm_.normed)[row_ + at] =
          Element::scaled(kept_[at], kept_[rows_.packs + at], scale, norm_.weight_bias);
    });
  }

 private:
  // This lane's packs of the row, by their owners.
  template <class Visit>
  __device__ __forceinline__ void for_each_pack(Visit&& visit) const {
#pragma unroll
    for (Word owner = 0; owner < kWorld; ++owner) {
      const Word at = owner * rows_.part + threadIdx.x;
      if (at < rows_.packs) visit(at);
    }
  }

  const Norm& norm_;
  const Rows& rows_;
  float* sums_;
  Pack* kept_;  // the row, and behind it the weights
  Word row_;
  bool has_part_ = false;
  bool failed_ = false;
  Pack residual_{};
};

}  // namespace pcie_allreduce::cuda
