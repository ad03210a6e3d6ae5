#include "protocol/one_shot.h"

#include "cuda/launch.h"
#include "cuda/machine.cuh"

namespace pcie_allreduce::cuda {
namespace {

template <class Element, int kWorld, bool kRagged>
__global__ void __launch_bounds__(kMaxThreads + kStewards, 3) one_shot_kernel(const __grid_constant__ CallParams params) {
  Machine<Element, kRagged> machine(params.channel, params.request);
  one_shot<Element, kWorld>(machine, params.channel, params.request);
}

using Kernel = void (*)(CallParams);

Kernel kernel_for(Dtype dtype, Word world, bool ragged) {
  return dispatch<Elements>(dtype, world, [&]<class Element, int kWorld>() -> Kernel {
    return ragged ? one_shot_kernel<Element, kWorld, true> : one_shot_kernel<Element, kWorld, false>;
  });
}

}  // namespace

cudaError_t launch_one_shot(const CallParams& params, Dtype dtype, bool ragged, const LaunchShape& shape,
                            cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads + kStewards;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = shape.dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel_for(dtype, params.channel.world, ragged), params);
}

cudaError_t one_shot_blocks_per_multiprocessor(Word world, unsigned threads, int* blocks) {
  *blocks = 1 << 20;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const bool ragged : {false, true}) {
      int fit = 0;
      const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel_for(dtype, world, ragged),
                                                                              static_cast<int>(threads + kStewards), 0);
      if (error != cudaSuccess) return error;
      *blocks = fit < *blocks ? fit : *blocks;
    }
  }
  return cudaSuccess;
}

}  // namespace pcie_allreduce::cuda
