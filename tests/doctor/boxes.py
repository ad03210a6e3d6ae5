"""Machines made by hand: one that is well, and what is changed in those that are not. Nobody here has seen one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pcie_allreduce.cli import findings
from pcie_allreduce.doctor.box import Box, Bridge
from pcie_allreduce.topology import Gpu, Link, Snapshot

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
WORLD = 8
MEMORY, BAR1 = 96 * 2**30, 128 * 2**30


def matrix(near: Any, far: Any, same: Any) -> tuple[tuple[Any, ...], ...]:
    count = range(WORLD)
    return tuple(tuple(same if a == b else near if a // 4 == b // 4 else far for b in count) for a in count)


def path(index: int, acs: int = 0) -> tuple[Bridge, ...]:
    """A switch with four GPUs on each half of the machine."""
    half = index // 4
    return (
        Bridge(f"0000:{16 * half + 3:02x}:{index % 4:02x}.0", "downstream", acs),
        Bridge(f"0000:{16 * half + 2:02x}:00.0", "upstream", 0),
        Bridge(f"0000:{16 * half:02x}:01.1", "root port", 0x1D),
    )


GPUS = tuple(
    Gpu(f"GPU-{index}", f"00000000:{index + 0x41:02X}:00.0", 0, NAME, 120, 5, 16, 5, 16, BAR1, False)
    for index in range(WORLD)
)
HEALTHY = Box(
    found=findings.Findings(
        version="0.1.0",
        python="3.12.3",
        cuda=True,
        cuda_archs=(120,),
        toolkit="13.0",
        compiler="13.3.0",
        driver="590.48.01",
        gpus=tuple(
            findings.Gpu(index, NAME, 120, MEMORY, gpu.bus_id or "", gpu.uuid) for index, gpu in enumerate(GPUS)
        ),
        torch="2.13.0+cu130",
        torch_cuda="13.0",
        torch_gpus=WORLD,
    ),
    topology=Snapshot(
        GPUS,
        matrix(Link.SINGLE_SWITCH, Link.MULTIPLE_SWITCHES, Link.SAME_GPU),
        matrix("ok", "ok", "ok"),
        "590.48.01",
    ),
    paths=tuple(path(index) for index in range(WORLD)),
    iommu=("identity",) * WORLD,
    iommus=4,
    nvidia_devices=WORLD,
    kernel_words=("iommu=pt",),
    module={"EnableResizableBar": "1", "DmaRemapPeerMmio": "1", "RegistryDwords": ""},
    node_cpus=((0, "0-63"),),
    allowed_cpus="0-63",
    shm_bytes=256 * 2**30,
    shm_free=255 * 2**30,
    own_ipc=False,
    own_pid=False,
    virtual=False,
)
# Every GPU on a port of a CPU; two switches with four GPUs each, on a CPU.
DIRECT = replace(HEALTHY.topology, links=matrix(Link.HOST_BRIDGE, Link.NODE, Link.SAME_GPU))
HALVES = replace(HEALTHY.topology, links=matrix(Link.SINGLE_SWITCH, Link.HOST_BRIDGE, Link.SAME_GPU))


def gpus(box: Box = HEALTHY, only: int | None = None, **change: Any) -> Box:
    """With all GPUs, or one, changed."""
    changed = tuple(
        replace(gpu, **change) if only in (None, index) else gpu for index, gpu in enumerate(box.topology.gpus)
    )
    return replace(box, topology=replace(box.topology, gpus=changed))


def found(box: Box = HEALTHY, **change: Any) -> Box:
    return replace(box, found=replace(box.found, **change))


def environment(**variables: str) -> Box:
    return found(environment=variables)


def keys(text: str, topology: Snapshot = HEALTHY.topology) -> Box:
    return replace(HEALTHY, topology=topology, module={"RegistryDwords": text})


def without_p2p(why: str | None, only: tuple[int, int] | None = None) -> Snapshot:
    count = range(WORLD)
    told = tuple(tuple(why if a != b and only in (None, (a, b)) else "ok" for b in count) for a in count)
    return replace(HEALTHY.topology, p2p=told)


NO_GPU = Box(
    found=replace(HEALTHY.found, driver=None, driver_error="NVML Shared Library Not Found", gpus=(), torch_gpus=0),
    topology=Snapshot.unknown((), "the NVIDIA driver does not answer: NVML Shared Library Not Found"),
    iommus=0,
    nvidia_devices=0,
    shm_bytes=2**34,
    shm_free=2**34,
)
# nccl#1999 and rtx6kpro#15: the first collective hangs behind an IOMMU that translates and switches that redirect.
TRANSLATED = replace(
    HEALTHY,
    topology=HALVES,
    iommu=("DMA-FQ",) * WORLD,
    kernel_words=(),
    paths=tuple(path(index, 0x1D) for index in range(WORLD)),
    module={"RegistryDwords": "ForceP2P=0x11;RMForceP2PType=1"},
    shm_bytes=64 * 2**20,
    shm_free=64 * 2**20,
    container="/.dockerenv is there",
    own_ipc=True,
    own_pid=True,
)
