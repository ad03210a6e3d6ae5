"""Ours, through the public face: what a user's call costs is what is timed."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

import pcie_allreduce
from pcie_allreduce.bench.backends.base import PACK, Seat

TIMEOUT = 30.0  # seconds a call may wait for peers, from the first call on: a benchmark has no slow first call


class Ours:
    name = "pcie_allreduce"
    in_place = False
    reduces = True

    def __init__(self, seat: Seat, algorithm: str, max_bytes: int) -> None:
        self._comm = pcie_allreduce.Communicator(
            seat.gloo,
            str(seat.device),
            max_bytes=max(max_bytes, PACK),
            timeout=TIMEOUT,
            warmup_timeout=TIMEOUT,
            algorithm=algorithm,
        )
        self.transport: str = self._comm.transport

    def algorithm(self, x: torch.Tensor) -> str:
        return self._comm.algorithm_for(x)

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        self._comm.all_reduce(source, out=output)

    def capture(self) -> AbstractContextManager[None]:
        return self._comm.capture()

    def check(self) -> None:
        self._comm.check()

    def close(self) -> None:
        self._comm.close()
