"""A reduce-scatter and an all-gather in two calls, in place of one all-reduce: the sum in `output` is the same."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from pcie_allreduce import chunks
from pcie_allreduce.bench.backends.base import Backend, Seat
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.bench.backends.torch_distributed import TorchDistributed


class InHalves:
    in_place = False
    reduces = True
    zeros = staticmethod(torch.zeros)

    def __init__(self, backend: Ours | TorchDistributed, seat: Seat) -> None:
        self.name = f"{backend.name}-halves"
        self.transport = backend.transport
        self._backend = backend
        self._seat = seat
        self._own: dict[int, torch.Tensor] = {}  # this rank's chunk of each output, made by its first launch

    def algorithm(self, x: torch.Tensor) -> str:
        return "none"

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        own = self._own.get(output.data_ptr())
        if own is None:
            own = self._own[output.data_ptr()] = output.view(self._seat.world, -1)[self._seat.rank]
        if isinstance(self._backend, Ours):
            self._backend.communicator.reduce_scatter(source, out=own)
            self._backend.communicator.all_gather(own, out=output)
        else:
            chunks.reduce_scatter(own, source, group=self._backend.group)
            chunks.all_gather(output, own, group=self._backend.group)

    def capture(self) -> AbstractContextManager[None]:
        return self._backend.capture()

    def check(self) -> None:
        self._backend.check()

    def close(self) -> None:
        self._backend.close()


def in_halves(backend: Backend, seat: Seat) -> Backend:
    """Of ours and of torch.distributed's."""
    if not isinstance(backend, (Ours, TorchDistributed)):
        raise ValueError(f"{backend.name} has no halves")
    return InHalves(backend, seat)
