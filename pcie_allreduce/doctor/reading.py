"""Reads a `Box`, where things are broken, without root, in containers: each fact by itself, a miss as a sentence.

`root` is "/", or a folder in which a test has laid out /sys and /proc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pcie_allreduce import nvml
from pcie_allreduce.cli.findings import Findings, look
from pcie_allreduce.doctor import config_space
from pcie_allreduce.doctor.box import Box, Bridge
from pcie_allreduce.doctor.finding import numbers
from pcie_allreduce.topology import Snapshot

# Values of these may be shown to others; names of hosts, interfaces and folders are in others.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_PROTO", "PCIE_ALLREDUCE_P2P",
)  # fmt: skip
KERNEL_WORDS = ("iommu", "intel_iommu", "amd_iommu", "pci=", "pcie_")
PARAMETERS = ("EnableResizableBar", "DmaRemapPeerMmio", "RegistryDwords")
GPU_FACTS = {"bus_id": "the place on the PCI bus", "sm": "the compute capability", "pcie_width": "the PCIe link",
             "bar1_bytes": "BAR1"}  # fmt: skip
# The kernel numbers the namespaces that it starts with, the same on every machine.
FIRST_IPC, FIRST_PID = "ipc:[4026531839]", "pid:[4026531836]"

_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]+")
_PATH = re.compile(r"(?<![\w.])(?:/[^\s/:'\"]+){2,}")
_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Box:
    topology = nvml.read()
    return from_files(anonymous(look(), environment), nameless(topology), root)


def anonymous(found: Findings, environment: Mapping[str, str]) -> Findings:
    """Without serial numbers and folders, and with the variables that the doctor judges."""
    kept = {name: _UUID.sub(r"\1-hidden", environment[name]) for name in VARIABLES if name in environment}
    told = ("build_error", "driver_error", "torch_error", "cpu_only_reason", "compiler")
    texts: dict[str, Any] = {name: _PATH.sub("(a path)", getattr(found, name)) for name in told}
    return replace(
        found, environment=kept, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in found.gpus), **texts
    )


def nameless(topology: Snapshot) -> Snapshot:
    gpus = tuple(replace(gpu, uuid=f"GPU-{index}") for index, gpu in enumerate(topology.gpus))
    problem = None if topology.problem is None else _PATH.sub("(a path)", topology.problem)
    return replace(topology, gpus=gpus, problem=problem)


def from_files(found: Findings, topology: Snapshot, root: Path) -> Box:
    return _Reader(root).box(found, topology)


class _Reader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._unseen: list[str] = []

    def box(self, found: Findings, topology: Snapshot) -> Box:
        devices = [None if gpu.bus_id is None else self._device(gpu.bus_id) for gpu in topology.gpus]
        cmdline = self._text("proc/cmdline", "the kernel's command line")
        params = self._text("proc/driver/nvidia/params", "the parameters of the NVIDIA kernel module")
        shm = self._space("dev/shm")
        facts: dict[str, Any] = {
            "paths": tuple(() if device is None else self._path(device) for device in devices),
            "iommu": tuple(None if device is None else self._iommu(device) for device in devices),
            "iommus": self._count("sys/class/iommu", "the IOMMUs that the kernel uses"),
            "nvidia_devices": self._nvidia_devices(),
            "kernel_words": None if cmdline is None else _chosen_words(cmdline),
            "module": None if params is None else _parameters(params),
            "node_cpus": self._node_cpus(),
            "allowed_cpus": self._status("Cpus_allowed_list"),
            "shm_bytes": shm and shm[0],
            "shm_free": shm and shm[1],
            "container": self._container(),
            "own_ipc": self._own("ipc", FIRST_IPC),
            "own_pid": self._own("pid", FIRST_PID),
            "virtual": self._virtual(),
        }
        self._driver_misses(topology)
        return Box(found, topology, **facts, unseen=tuple(dict.fromkeys(self._unseen)))

    def _miss(self, what: str, error: OSError | ValueError) -> None:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not as expected"
        self._unseen.append(f"Not seen: {what} ({why}).")

    def _driver_misses(self, topology: Snapshot) -> None:
        for name, what in GPU_FACTS.items():
            silent = [index for index, gpu in enumerate(topology.gpus) if getattr(gpu, name) is None]
            if silent:
                self._unseen.append(f"Not seen: {what} of {numbers(silent)} (the driver does not tell).")
        if len(topology.gpus) > 1 and topology.farthest() is None:
            self._unseen.append("Not seen: what lies between the GPUs (the driver does not tell of every pair).")

    def _text(self, path: str, what: str) -> str | None:
        try:
            return (self._root / path).read_text(errors="replace")
        except OSError as error:
            self._miss(f"{what}, /{path}", error)
            return None

    def _device(self, bus_id: str) -> Path:
        return self._root / "sys/bus/pci/devices" / nvml.sysfs_name(bus_id)

    def _path(self, device: Path) -> tuple[Bridge, ...]:
        """sysfs nests a device in the folder of the bridge above it."""
        above = [folder for folder in device.resolve().parents if _BDF.fullmatch(folder.name)]
        return tuple(self._bridge(folder) for folder in above)

    def _bridge(self, folder: Path) -> Bridge:
        try:
            found = config_space.bridge(folder.name, (folder / "config").read_bytes())
        except OSError as error:
            self._miss("the configuration space of the bridges above the GPUs", error)
            return Bridge(folder.name)
        if found.acs is None:
            self._unseen.append(
                "Not seen: the ACS bits of the bridges above the GPUs (the kernel shows them to root alone: sudo)."
            )
        return found

    def _iommu(self, device: Path) -> str | None:
        group = device / "iommu_group"
        if not group.exists():
            return None
        try:
            return (group / "type").read_text().strip()
        except OSError as error:
            self._miss("how the IOMMU treats the GPUs", error)
            return None

    def _count(self, folder: str, what: str) -> int | None:
        try:
            return len(list((self._root / folder).iterdir()))
        except OSError as error:
            self._miss(f"{what}, /{folder}", error)
            return None

    def _nvidia_devices(self) -> int | None:
        try:
            devices = list((self._root / "sys/bus/pci/devices").iterdir())
        except OSError as error:
            self._miss("the PCI bus", error)
            return None
        return sum(_has(device, "vendor", "0x10de") and _has(device, "class", "0x03") for device in devices)

    def _node_cpus(self) -> tuple[tuple[int, str], ...]:
        found = []
        for folder in sorted((self._root / "sys/devices/system/node").glob("node[0-9]*")):
            cpus = self._text(str(folder.relative_to(self._root) / "cpulist"), "the CPUs of a NUMA node")
            found += [] if cpus is None else [(int(folder.name.removeprefix("node")), cpus.strip())]
        return tuple(sorted(found))

    def _status(self, name: str) -> str | None:
        lines = (self._text("proc/self/status", "what this process may use") or "").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(name + ":")), None)

    def _space(self, path: str) -> tuple[int, int] | None:
        try:
            seen = os.statvfs(self._root / path)
        except OSError as error:
            self._miss(f"/{path}", error)
            return None
        return seen.f_blocks * seen.f_frsize, seen.f_bavail * seen.f_frsize

    def _container(self) -> str | None:
        marks = [name for name in (".dockerenv", "run/.containerenv") if (self._root / name).exists()]
        if marks:
            return f"/{marks[0]} is there"
        mounts = [line.split() for line in (self._text("proc/self/mountinfo", "what is mounted") or "").splitlines()]
        layered = any(len(words) > 6 and words[4] == "/" and "overlay" in words[6:] for words in mounts)
        return "its root is an overlay" if layered else None

    def _own(self, kind: str, first: str) -> bool | None:
        try:
            return str((self._root / "proc/self/ns" / kind).readlink()) != first
        except OSError as error:
            self._miss(f"this process's {kind} namespace", error)
            return None

    def _virtual(self) -> bool | None:
        text = self._text("proc/cpuinfo", "the CPU")
        return None if text is None else bool(re.search(r"^flags\b.*\bhypervisor\b", text, re.MULTILINE))


def _has(device: Path, name: str, begins: str) -> bool:
    try:
        return (device / name).read_text().startswith(begins)
    except OSError:
        return False


def _chosen_words(cmdline: str) -> tuple[str, ...]:
    return tuple(word for word in cmdline.split() if word.startswith(KERNEL_WORDS))


def _parameters(text: str) -> dict[str, str]:
    pairs = [line.partition(":") for line in text.splitlines()]
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs if name.strip() in PARAMETERS}
