"""What stands between two shards: the partial sums of all ranks, the residual, and the norm.

`Alone` sums nothing, so that what a pass takes without communication is measured in the same processes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from pcie_allreduce.bench.backends.base import Backend
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.fused import FusedCall, add_rms_norm

EPSILON = 1e-5


class Joint(Protocol):
    label: str

    def join(self, partial: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Adds the sum of all ranks' `partial` to `residual`, in place, and returns its norm. `partial` may be lost."""

    def algorithm(self, x: torch.Tensor) -> str: ...

    def capture(self) -> AbstractContextManager[None]: ...

    def check(self) -> None: ...


def add_and_norm(reduced: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One kernel on a GPU, as engines have one for it."""
    call = FusedCall(reduced, residual, weight, EPSILON, 0.0, torch.empty_like(reduced), residual)
    add_rms_norm(reduced, call)
    return call.normed


class Alone:
    label = "no communication"

    def join(self, partial: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return add_and_norm(partial, residual, weight)

    def algorithm(self, x: torch.Tensor) -> str:
        return "none"

    def capture(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        pass


class Reduced:
    """An all-reduce, then add and norm. One that is in place sums `partial` itself, as engines call it."""

    def __init__(self, backend: Backend) -> None:
        self.label = backend.name
        self._backend = backend
        self.algorithm = backend.algorithm
        self.capture = backend.capture
        self.check = backend.check

    def join(self, partial: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        reduced = partial if self._backend.in_place else torch.empty_like(partial)
        self._backend.launch(partial, reduced)
        return add_and_norm(reduced, residual, weight)


class Fused:
    """Ours, with add and norm in the same kernel."""

    def __init__(self, ours: Ours) -> None:
        self.label = f"{ours.name} fused"
        self._comm = ours.communicator
        self.capture = ours.capture
        self.check = ours.check

    def join(self, partial: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed, _ = self._comm.all_reduce_add_rms_norm(partial, residual, weight, EPSILON, residual_out=residual)
        return normed

    def algorithm(self, x: torch.Tensor) -> str:
        """ "none" where it takes two steps after all."""
        plan = self._comm.fused_plan_for(x)
        return "none" if plan is None else plan.algorithm
