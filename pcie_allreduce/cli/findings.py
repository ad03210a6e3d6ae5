"""What is on this machine. `pcie-allreduce info` is run where things are broken, so each thing is looked for by itself
and a miss is kept as a sentence.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

# NVIDIA's minor-version compatibility: the first driver of a CUDA major version runs machine code of all its minors.
MINIMUM_DRIVER = {"12": "525.60.13", "13": "580.65.06"}


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    capability: int  # 120 for compute capability 12.0
    memory_bytes: int
    bus_id: str
    uuid: str


@dataclass(frozen=True)
class Findings:
    version: str
    python: str = ""
    cuda: bool = False
    cuda_archs: tuple[int, ...] = ()
    toolkit: str | None = None
    compiler: str = ""
    cpu_only_reason: str = ""
    build_error: str = ""  # why the native module does not import
    driver: str | None = None
    driver_error: str = ""
    gpus: tuple[Gpu, ...] = ()
    torch: str | None = None
    torch_cuda: str | None = None
    torch_gpus: int = 0
    torch_error: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def minimum_driver(self) -> str | None:
        return MINIMUM_DRIVER.get((self.toolkit or "").split(".")[0])


def look() -> Findings:
    watched = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "PCIE_ALLREDUCE")
    return Findings(
        version=metadata.version("pcie-allreduce"),
        python=platform.python_version(),
        environment={name: value for name, value in os.environ.items() if name.startswith(watched)},
        **_build(),
        **_driver(),
        **_torch(),
    )


def _build() -> dict[str, Any]:
    try:
        from pcie_allreduce import _C

        info = _C.build_info()
    except ImportError as error:
        return {"build_error": str(error)}
    known = ("cuda", "toolkit", "compiler", "cpu_only_reason")
    return {"cuda_archs": tuple(info["cuda_archs"]), **{name: info[name] for name in known if info.get(name)}}


def _driver() -> dict[str, Any]:
    try:
        import pynvml
    except ImportError as error:
        return {"driver_error": str(error)}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"driver_error": str(error)}
    try:
        gpus = tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "gpus": gpus}
    except pynvml.NVMLError as error:
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "driver_error": str(error)}
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        capability=10 * major + minor,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId,
        uuid=nvml.nvmlDeviceGetUUID(handle),
    )


def _torch() -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of CUDA that torch cannot load
        return {"torch_error": str(error)}
    return {
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "torch_gpus": torch.cuda.device_count(),
    }
