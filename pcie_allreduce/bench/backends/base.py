"""What the benchmark needs of an all-reduce.

Some all-reduces only work in place (torch.distributed's) and some out of place. Both are launched as
`launch(source, output)`; one that is in place finds a copy of the source in `output` already, made outside the timed
region, so that nobody is charged for a copy that its users would not make.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from pcie_allreduce.errors import PcieAllReduceError

PACK = 16  # bytes; buffers are padded to whole packs

# torch.zeros, or what is called like it: (size, dtype=, device=).
Zeros = Callable[..., torch.Tensor]


class Unavailable(PcieAllReduceError):
    """This backend cannot run here; raised by its construction, with the same sentence on all ranks."""


@dataclass(frozen=True)
class Seat:
    """Where one rank sits. `gloo` is a group over all ranks for barriers and for what ranks tell each other."""

    rank: int
    world: int
    device: torch.device
    gloo: dist.ProcessGroup

    def barrier(self) -> None:
        dist.barrier(group=self.gloo)

    def gather(self, value: Any) -> list[Any]:
        """Of all ranks, in their order."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.gloo)
        return values


class Backend(Protocol):
    """One all-reduce on one rank. Construction and `launch` are collective; `close` is not."""

    @property
    def name(self) -> str:
        """The row's `backend`."""

    @property
    def transport(self) -> str:
        """The row's `transport`."""

    @property
    def in_place(self) -> bool:
        """True: sums `output` itself."""

    @property
    def reduces(self) -> bool:
        """False: a floor that moves bytes and sums nothing, so that there is no sum to judge."""

    def algorithm(self, x: torch.Tensor) -> str:
        """The row's `algorithm` for a tensor like `x`."""

    @property
    def zeros(self) -> Zeros:
        """Makes a buffer where this backend's users have their tensors. Collective."""

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        """One call on the current stream, with buffers that `zeros` has made."""

    def capture(self) -> AbstractContextManager[None]:
        """Entered around the capture of a CUDA graph."""

    def check(self) -> None:
        """Raises what earlier launches reported."""

    def close(self) -> None:
        """Gives back what construction took."""
