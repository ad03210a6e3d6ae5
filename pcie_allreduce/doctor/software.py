"""Build, driver and torch. What is missing there is decided where `info` decides it."""

from __future__ import annotations

from pcie_allreduce.cli.info import missing_build, missing_driver, missing_torch
from pcie_allreduce.doctor.box import Box
from pcie_allreduce.doctor.finding import Finding, ok, problem, warning


def check_build(box: Box) -> list[Finding]:
    found = box.found
    sentences = missing_build(found)
    if sentences:
        bad = bool(found.build_error or found.gpus or box.nvidia_devices)
        remedy = "Install the package again where nvcc is found, with PCIE_ALLREDUCE_CUDA_ARCHS for these GPUs."
        judge = problem if bad else warning
        return [judge("build", sentence, remedy if bad else "") for sentence in sentences]
    archs = ", ".join(f"sm_{arch}" for arch in found.cuda_archs)
    return [ok("build", f"GPU code for {archs}, built with CUDA {found.toolkit}.")]


def check_driver(box: Box) -> list[Finding]:
    found, hidden = box.found, box.nvidia_devices or 0
    sentences = missing_driver(found)
    if not sentences:
        return [ok("driver", f"{found.driver}, new enough for CUDA {found.toolkit or '(none)'}.")]
    if found.driver is not None and found.gpus:
        return [problem("driver", text, "Install a newer driver, or build with an older CUDA.") for text in sentences]
    if found.driver is not None and found.driver_error:
        remedy = "Look for Xid messages in dmesg; a GPU that fell off the bus needs a reset or a power cycle."
        return [problem("driver", text, remedy) for text in sentences]
    if hidden:
        remedy = "Load the driver (modprobe nvidia; nvidia-smi), or give the container its GPUs (--gpus all)."
        text = f"{sentences[0]} The PCI bus has {hidden} NVIDIA GPU(s)."
        return [problem("driver", text, remedy)]
    return [warning("driver", f"{text} Only CPU ranks can run here.") for text in sentences]


def check_torch(box: Box) -> list[Finding]:
    found = box.found
    sentences = missing_torch(found)
    if not sentences:
        return [ok("torch", f"{found.torch}, CUDA {found.torch_cuda or 'none'}.")]
    hidden = found.torch is not None and found.torch_cuda is not None
    remedy = "" if hidden else "Install a torch that is built for this CUDA."
    judge = warning if hidden else problem
    return [judge("torch", sentence, remedy) for sentence in sentences]
