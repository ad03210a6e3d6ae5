"""The names of all backends, and why one of them is not run. Pure: nothing here imports torch or a peer.

NCCL reads its settings from the environment when its first communicator is made, and torch when its first symmetric
memory is, so each set of them needs rank processes of its own. Backends with equal settings share processes, where
their repeats take turns.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """A backend that this package can run. `environment` is set in its rank processes before anything starts."""

    name: str
    devices: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    halves: bool = False  # it has a reduce-scatter and an all-gather, too
    own_gpu: str = ""  # who refuses two ranks on one GPU
    algorithms: tuple[str, ...] = ("",)  # each is a job of its own; ours takes those that are asked for
    no_sum_of: tuple[str, ...] = ()  # dtypes


ENTRIES = (
    Entry("pcie_allreduce", ("cpu", "cuda"), halves=True),
    Entry("nccl", ("cuda",), halves=True, own_gpu="NCCL"),
    Entry(
        "nccl-tuned", ("cuda",), {"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL,LL128,Simple"}, halves=True, own_gpu="NCCL"
    ),
    Entry("nccl-p2p-off", ("cuda",), {"NCCL_P2P_DISABLE": "1"}, halves=True, own_gpu="NCCL"),
    Entry("gloo", ("cpu",), halves=True),
    Entry("floor", ("cuda",)),
    Entry(
        "torch-symm-mem",
        ("cuda",),
        {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
        own_gpu="torch",
        algorithms=("one_shot", "two_shot"),
        no_sum_of=("fp16",),
    ),
)

# Peers by the name of their row, and the distribution that brings them. None has an adapter here yet.
PEERS = {
    "flashinfer-pcie-ipc": "flashinfer-python",
    "trtllm-lamport": "tensorrt-llm",
    "vllm-custom": "vllm",
    "b12x": "b12x",
}


@dataclass(frozen=True)
class Job:
    """One backend as one rank process runs it; `algorithm` is "" for those that have no choice. `norm`: residual
    and RMSNorm are "fused" with it, come "behind" it, or "" are left out. `halves`: in two calls."""

    backend: str
    algorithm: str = ""
    norm: str = ""
    halves: bool = False

    @property
    def label(self) -> str:
        name = self.backend + "+norm" * (self.norm == "behind") + "-halves" * self.halves
        return f"{name} ({self.algorithm})" if self.algorithm else name


@dataclass(frozen=True)
class Pass:
    """Jobs that share rank processes, and the environment variables of these."""

    environment: Mapping[str, str]
    jobs: tuple[Job, ...]


def all_names() -> tuple[str, ...]:
    return tuple(entry.name for entry in ENTRIES)


def names_for(device: str) -> tuple[str, ...]:
    return tuple(entry.name for entry in ENTRIES if device in entry.devices)


def plan(
    backends: Iterable[str],
    algorithms: Iterable[str],
    device: str,
    ranks: int,
    gpus: int,
    norms: bool = False,
    dtype: str = "bf16",
    halves: bool = False,
) -> tuple[list[Pass], dict[str, str]]:
    """The passes of a run in order, and for every backend that is in none of them the reason."""
    wanted, not_run = set(backends), not_installed(device)
    passes: dict[tuple[tuple[str, str], ...], tuple[Job, ...]] = {}
    for entry in ENTRIES:
        reason = _why_not(entry, entry.name in wanted, device, ranks, gpus, dtype)
        if reason is not None:
            not_run[entry.name] = reason
            continue
        choices = tuple(algorithms) if entry.name == "pcie_allreduce" else entry.algorithms
        jobs = tuple(
            Job(entry.name, choice, norm) for choice in choices for norm in (_norms(entry) if norms else ("",))
        )
        if halves and entry.halves:
            jobs += (Job(entry.name, "auto" if entry.name == "pcie_allreduce" else "", halves=True),)
        key = tuple(sorted(entry.environment.items()))
        passes[key] = (*passes.get(key, ()), *jobs)
    return [Pass(dict(key), jobs) for key, jobs in passes.items()], not_run


def _norms(entry: Entry) -> tuple[str, ...]:
    if entry.name == "floor":
        return ("",)
    return ("fused", "behind") if entry.name == "pcie_allreduce" else ("behind", "")


def _why_not(entry: Entry, wanted: bool, device: str, ranks: int, gpus: int, dtype: str) -> str | None:
    if device not in entry.devices:
        return "needs GPUs" if device == "cpu" else "serves CPU ranks only"
    if not wanted:
        return "not asked for"
    if entry.own_gpu and ranks > gpus:
        return f"{entry.own_gpu} refuses two ranks on one GPU, and {ranks} ranks share {gpus} GPU(s)"
    if dtype in entry.no_sum_of:
        return f"has no sum of {dtype}"
    return None


def not_installed(device: str) -> dict[str, str]:
    """Why each peer has no rows."""
    return {name: "needs GPUs" if device == "cpu" else _peer(package) for name, package in PEERS.items()}


def _peer(package: str) -> str:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
    return f"{package} {version} is installed, but this version has no adapter for it"
