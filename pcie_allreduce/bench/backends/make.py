"""From a job to a backend, inside a rank. A new backend is one line here and one entry in the catalogue."""

from __future__ import annotations

from pcie_allreduce.bench.backends import torch_distributed
from pcie_allreduce.bench.backends.base import Backend, Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.backends.floor import Floor
from pcie_allreduce.bench.backends.in_halves import in_halves
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.bench.backends.torch_symmetric import TorchSymmetric
from pcie_allreduce.bench.backends.with_norm import Behind, Fused


def make(job: Job, seat: Seat, max_bytes: int, hidden: int | None = None) -> Backend:
    """Collective over `seat.gloo`: all ranks make the same backends in the same order. `hidden`: of rows to norm.
    `Unavailable` where a backend cannot run here."""
    backend = _make(job, seat, max_bytes)
    if job.halves:
        return in_halves(backend, seat)
    if hidden is None or not job.norm:
        return backend
    return Fused(backend, hidden) if isinstance(backend, Ours) and job.norm == "fused" else Behind(backend, hidden)


def _make(job: Job, seat: Seat, max_bytes: int) -> Backend:
    if job.backend == "pcie_allreduce":
        return Ours(seat, job.algorithm, max_bytes)
    if job.backend == "floor":
        return Floor(seat)
    if job.backend == "gloo":
        return torch_distributed.gloo(seat)
    if job.backend == TorchSymmetric.name:
        return TorchSymmetric(seat, job.algorithm)
    if job.backend.startswith("nccl"):
        return torch_distributed.nccl(seat, job.backend)
    raise ValueError(f"no backend is called {job.backend!r}")
