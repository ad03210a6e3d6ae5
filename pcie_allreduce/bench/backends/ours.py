"""Ours, through the public face: what a user's call costs is what is timed."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

import pcie_allreduce
from pcie_allreduce.bench.backends.base import PACK, Seat
from pcie_allreduce.bench.backends.torch_distributed import TorchDistributed
from pcie_allreduce.cache import Key
from pcie_allreduce.plan import Plan, Step, Tuned

TIMEOUT = 30.0  # seconds a call may wait for peers, from the first call on: a benchmark has no slow first call


class Ours:
    in_place = False
    reduces = True
    zeros = staticmethod(torch.zeros)

    def __init__(self, seat: Seat, algorithm: str, max_bytes: int, fallback: TorchDistributed | None = None) -> None:
        self.name = "pcie_allreduce"
        self._fallback = fallback
        self._pulls = algorithm == "pull"  # to users a transport, and to readers of rows an algorithm
        self._comm = pcie_allreduce.Communicator(
            seat.gloo,
            str(seat.device),
            fallback=fallback and fallback.group,
            max_bytes=max(max_bytes, PACK),
            timeout=TIMEOUT,
            warmup_timeout=TIMEOUT,
            transport="pull" if self._pulls else "auto",
            algorithm="auto" if self._pulls else algorithm,
        )
        if self._pulls:
            self.transport = "cpu" if seat.device.type == "cpu" else "peer"
        else:
            self.transport = self._comm.transport

    @property
    def communicator(self) -> pcie_allreduce.Communicator:
        return self._comm

    def algorithm(self, x: torch.Tensor) -> str:
        return "pull" if self._pulls else self._comm.algorithm_for(x)

    @property
    def tuned(self) -> Tuned:
        return self._comm.tuned

    @property
    def cache_key(self) -> Key:
        return self._comm.cache_key

    @property
    def has_fallback(self) -> bool:
        return self._fallback is not None

    def plan(self, x: torch.Tensor, step: Step | None) -> Plan | None:
        """What serves a tensor like `x` from now on, on all ranks: as the step says, or as no table says."""
        self._comm.replan(() if step is None else (step,))
        self.name = self._fallback.name if self._fallback and step and step.fallback else "pcie_allreduce"
        return self._comm.plan_for(x)

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        self._comm.all_reduce(source, out=output)

    def capture(self) -> AbstractContextManager[None]:
        return self._comm.capture()

    def check(self) -> None:
        self._comm.check()

    def close(self) -> None:
        self._comm.close()
