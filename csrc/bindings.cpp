// pybind11 only: pointers, sizes and a stream cross this border, so that one build serves every torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <sstream>

#include "host/cpu_ranks.h"
#if PCIE_ALLREDUCE_WITH_CUDA
#include "cuda/gpu_ranks.h"
#endif

namespace py = pybind11;
using namespace pcie_allreduce;

namespace {

template <class T>
T* pointer(std::uintptr_t address) {
  if (address == 0) throw std::invalid_argument("the tensor has no memory (is it a fake or a meta tensor?)");
  return reinterpret_cast<T*>(address);
}

py::tuple signature(const Word (&words)[4]) { return py::make_tuple(words[0], words[1], words[2], words[3]); }

py::object describe(const FaultRecord* record) {
  if (record == nullptr) return py::none();
  py::dict fault;
  fault["reason"] = record->reason;
  fault["algorithm"] = record->algorithm;
  fault["stage"] = record->stage;
  fault["call"] = record->call;
  fault["missing"] = record->missing;
  fault["reporter"] = record->reporter;
  fault["waited"] = record->waited_ms / 1000.0;
  fault["ours"] = signature(record->ours);
  fault["theirs"] = signature(record->theirs);
  return fault;
}

// (calls, total seconds, worst seconds) of every rank.
py::list describe(const std::vector<PeerWait>& waits) {
  py::list peers;
  for (const PeerWait& wait : waits) {
    peers.append(py::make_tuple(wait.calls, static_cast<double>(wait.total_ns) * 1e-9, wait.worst_us * 1e-6));
  }
  return peers;
}

std::vector<std::string> strings(const std::vector<py::bytes>& handles) { return {handles.begin(), handles.end()}; }

// Other Python threads run meanwhile. Ctrl-C ends a wait (`interrupted`), and is raised here.
template <class Call>
auto waiting(const Call& call) {
  const auto result = [&] {
    const py::gil_scoped_release others_run;
    return call();
  }();
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return result;
}

// What was measured, without the places that nothing was told of: (index, finding, where, expected, got, nanoseconds
// from its rank's clock: began, ended).
template <class Channel>
py::list measure(Channel& channel, const std::vector<Word>& experiment, double timeout) {
  if (experiment.size() != 8) throw std::invalid_argument("an experiment has 8 words");
  const Experiment asked{static_cast<ExperimentKind>(experiment[0]),
                         experiment[1],
                         experiment[2],
                         experiment[3],
                         experiment[4],
                         experiment[5],
                         experiment[6],
                         experiment[7]};
  const std::vector<Result> results = waiting([&] { return channel.measure(asked, timeout); });
  py::list told;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& result = results[i];
    if (result.finding == 0) continue;
    const auto ns = [](const Word(&halves)[2]) { return static_cast<std::uint64_t>(halves[1]) << 32 | halves[0]; };
    told.append(py::make_tuple(i, result.finding, result.where, result.expected, result.got, ns(result.began),
                               ns(result.ended)));
  }
  return told;
}

// Ctrl-C while a call waits: the pending exception is raised when the call returns.
bool interrupted() {
  const py::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

py::dict build_info() {
  py::dict info;
  info["version"] = PCIE_ALLREDUCE_VERSION;
  info["compiler"] = __VERSION__;
  info["layout"] = kLayoutVersion;
#if PCIE_ALLREDUCE_WITH_CUDA
  std::vector<int> archs;
  std::istringstream list(PCIE_ALLREDUCE_CUDA_ARCHS);
  for (std::string arch; std::getline(list, arch, ',');) archs.push_back(std::stoi(arch));
  info["cuda"] = true;
  info["cuda_archs"] = archs;
  info["toolkit"] = PCIE_ALLREDUCE_TOOLKIT;
  info["cpu_only_reason"] = py::none();
#else
  info["cuda"] = false;
  info["cuda_archs"] = py::list();
  info["toolkit"] = py::none();
  info["cpu_only_reason"] = PCIE_ALLREDUCE_CPU_ONLY_REASON;
#endif
#if defined(PCIE_ALLREDUCE_NO_DEADLINE)
  info["deadline"] = false;
#else
  info["deadline"] = true;
#endif
  info["counts_waits"] = kCountsWaits;
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("build_info", &build_info);
  m.def(
      "packs_used",
      [](Word algorithm, Word dtype, Word world, Word bytes, Word transport, Word sum_copies) {
        return packs_used(static_cast<Algorithm>(algorithm), static_cast<Dtype>(dtype), world, bytes,
                          static_cast<Transport>(transport), sum_copies);
      },
      py::arg("algorithm"), py::arg("dtype"), py::arg("world"), py::arg("bytes"), py::arg("transport"),
      py::arg("sum_copies") = 1);
  m.def("slab_bytes",
        [](Word area_packs, Word transport) { return slab_bytes(area_packs, static_cast<Transport>(transport)); });
  m.attr("MAX_WORLD") = kMaxWorld;
  m.attr("MAX_BLOCKS") = kMaxBlocks;
  m.attr("MAX_HIDDEN") = kMaxHidden;
  m.attr("GREETING_PACKS") = kGreetingPacks;
  m.attr("PROBE_AREA_PACKS") = kProbeAreaPacks;
  m.attr("PROBE_OUTBOX") = py::make_tuple(kOutboxOffset, kPayloadPacks);
  m.attr("PROBE_BURST_PACKS") = kBurstPacks;

  py::class_<Norm>(m, "Norm").def(py::init([](std::uintptr_t residual, std::uintptr_t weight, std::uintptr_t normed,
                                              float eps, float weight_bias, Word fp8, std::uintptr_t scales) {
                                    const Fp8 kind = static_cast<Fp8>(fp8);
                                    return Norm{pointer<const void>(residual),
                                                pointer<const void>(weight),
                                                pointer<void>(normed),
                                                eps,
                                                weight_bias,
                                                kind,
                                                kind == Fp8::kNone ? nullptr : pointer<float>(scales)};
                                  }),
                                  py::arg("residual"), py::arg("weight"), py::arg("normed"), py::arg("eps"),
                                  py::arg("weight_bias"), py::arg("fp8") = 0, py::arg("scales") = 0);

  using host::CpuChannel;
  py::class_<CpuChannel>(m, "CpuChannel")
      .def(py::init([](Word rank, Word world, Word area_packs, double timeout, double warmup_timeout, Word transport,
                       bool crowded) {
             return std::make_unique<CpuChannel>(rank, world, area_packs, timeout, warmup_timeout,
                                                 static_cast<Transport>(transport), crowded, interrupted);
           }),
           py::arg("rank"), py::arg("world"), py::arg("area_packs"), py::arg("timeout"), py::arg("warmup_timeout"),
           py::arg("transport"), py::arg("crowded"))
      .def("handle", [](const CpuChannel& channel) { return py::bytes(channel.handle()); })
      .def("open", [](CpuChannel& channel, const std::vector<py::bytes>& handles) { channel.open(strings(handles)); })
      .def("forget_names", &CpuChannel::forget_names)
      .def("set_islands", &CpuChannel::set_islands)
      .def("set_sum_copies", &CpuChannel::set_sum_copies, py::arg("copies"), py::arg("own"))
      .def("exchange",
           [](CpuChannel& channel, double timeout) { return waiting([&] { return channel.exchange(timeout); }); })
      .def("measure", &measure<CpuChannel>)
      .def("collective",
           [](CpuChannel& channel, std::uintptr_t in, std::uintptr_t out, Word bytes, Word algorithm, Word dtype) {
             return waiting([&] {
               return channel.collective(pointer<const void>(in), pointer<void>(out), bytes,
                                         static_cast<Algorithm>(algorithm), static_cast<Dtype>(dtype));
             });
           })
      .def("all_reduce_add_rms_norm",
           [](CpuChannel& channel, std::uintptr_t in, std::uintptr_t out, Word bytes, Word hidden, const Norm& norm,
              Word algorithm, Word dtype) {
             return waiting([&] {
               return channel.all_reduce_add_rms_norm(pointer<const void>(in), pointer<void>(out), bytes, hidden, norm,
                                                      static_cast<Algorithm>(algorithm), static_cast<Dtype>(dtype));
             });
           })
      .def("fault", [](const CpuChannel& channel) { return describe(channel.fault()); })
      .def("waits", [](const CpuChannel& channel) { return describe(channel.waits()); })
      .def("close", &CpuChannel::close);

#if PCIE_ALLREDUCE_WITH_CUDA
  using cuda::GpuChannel;
  m.attr("MAX_CLUSTER") = cuda::kMaxCluster;
  m.def("max_wide_threads", &cuda::max_wide_threads);
  py::class_<GpuChannel>(m, "GpuChannel")
      .def(py::init([](int device, Word rank, Word world, Word area_packs, double timeout, double warmup_timeout,
                       Word transport) {
             return std::make_unique<GpuChannel>(device, rank, world, area_packs, timeout, warmup_timeout,
                                                 static_cast<Transport>(transport));
           }),
           py::arg("device"), py::arg("rank"), py::arg("world"), py::arg("area_packs"), py::arg("timeout"),
           py::arg("warmup_timeout"), py::arg("transport"))
      .def("handle", [](const GpuChannel& channel) { return py::bytes(channel.handle()); })
      .def("open", [](GpuChannel& channel, const std::vector<py::bytes>& handles) { channel.open(strings(handles)); })
      .def("forget_names", &GpuChannel::forget_names)
      .def("set_islands", &GpuChannel::set_islands)
      .def("set_sum_copies", &GpuChannel::set_sum_copies, py::arg("copies"), py::arg("own"))
      .def("exchange", &GpuChannel::exchange, py::call_guard<py::gil_scoped_release>())
      .def("measure", &measure<GpuChannel>)
      .def("collective",
           [](GpuChannel& channel, std::uintptr_t in, std::uintptr_t out, Word bytes, Word algorithm, Word dtype,
              unsigned blocks, unsigned threads, std::uintptr_t stream) {
             return channel.collective(pointer<const void>(in), pointer<void>(out), bytes,
                                       static_cast<Algorithm>(algorithm), static_cast<Dtype>(dtype), blocks, threads,
                                       reinterpret_cast<cudaStream_t>(stream));
           })
      .def("fault",
           [](const GpuChannel& channel) {
             const std::optional<FaultRecord> fault = channel.fault();
             return describe(fault ? &*fault : nullptr);
           })
      .def("waits", [](const GpuChannel& channel) { return describe(channel.waits()); })
      .def("all_reduce_add_rms_norm",
           [](GpuChannel& channel, std::uintptr_t in, std::uintptr_t out, Word bytes, Word hidden, const Norm& norm,
              Word algorithm, Word dtype, unsigned teams, unsigned cluster, unsigned threads, std::uintptr_t stream) {
             return channel.all_reduce_add_rms_norm(pointer<const void>(in), pointer<void>(out), bytes, hidden, norm,
                                                    static_cast<Algorithm>(algorithm), static_cast<Dtype>(dtype), teams,
                                                    cluster, threads, reinterpret_cast<cudaStream_t>(stream));
           })
      .def("resident_blocks", &GpuChannel::resident_blocks)
      .def("resident_teams",
           [](const GpuChannel& channel, Word algorithm, unsigned threads, unsigned cluster) {
             return channel.resident_teams(static_cast<Algorithm>(algorithm), threads, cluster);
           })
      .def("close", &GpuChannel::close, py::arg("patience"), py::call_guard<py::gil_scoped_release>());
  m.def("add_rms_norm", [](std::uintptr_t in, std::uintptr_t out, Word rows, Word hidden, const Norm& norm, Word dtype,
                           bool dependent, std::uintptr_t stream) {
    cuda::require(
        cuda::launch_add_rms_norm(pointer<const void>(in), pointer<void>(out), rows, hidden, norm,
                                  static_cast<Dtype>(dtype), dependent, reinterpret_cast<cudaStream_t>(stream)),
        "launching the norm");
  });
  m.def(
      "copy_packs",
      [](std::uintptr_t to, std::uintptr_t from, Word bytes, std::uintptr_t stream) {
        cuda::require(cuda::launch_copy_packs(pointer<void>(to), pointer<const void>(from), bytes / sizeof(Pack),
                                              reinterpret_cast<cudaStream_t>(stream)),
                      "launching the copy");
      },
      "Copies nbytes (a multiple of 16) from one device address to another in one launch, 16 bytes a thread.");
#endif
}
