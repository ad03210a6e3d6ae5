"""The timed unit: call by call, or one CUDA graph of all calls.

A graph freezes its pointers, so its buffers are made once and checked where they lie. An in-place backend sums the
same buffer again on every fourth call of the timed graph; its sums are judged in a second, short graph that reduces
each buffer once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from pcie_allreduce.bench.backends.base import PACK, Backend, Zeros
from pcie_allreduce.bench.procedure import Counts


class Pair(NamedTuple):
    source: torch.Tensor
    output: torch.Tensor


class Run(Protocol):
    """Collective: all ranks call the same methods in the same order."""

    def restore(self) -> None: ...

    def lead_in(self) -> None: ...

    def calls(self) -> None: ...

    def each_pair(self) -> None:
        """Reduces every pair at least once, an in-place one exactly once."""

    def close(self) -> None: ...


def make_pairs(
    count: int,
    elements: int,
    dtype: torch.dtype,
    device: torch.device,
    zeros: Zeros = torch.zeros,
) -> list[Pair]:
    """Buffers of whole 16-byte packs, cut to `elements`; `zeros` is the backend's."""
    padded = elements + (-elements * dtype.itemsize % PACK) // dtype.itemsize

    def buffer() -> torch.Tensor:
        return zeros(padded, dtype=dtype, device=device)[:elements]

    return [Pair(buffer(), buffer()) for _ in range(count)]


class EagerRun:
    def __init__(self, backend: Backend, pairs: list[Pair], counts: Counts) -> None:
        self._launch = backend.launch
        self._copies = [pair for pair in pairs if backend.in_place]
        self._pairs = pairs
        self._calls, self._lead_in = self._rota(counts.calls), self._rota(counts.lead_in)
        self.restore()
        self._repeat(self._rota(counts.warmup))

    def restore(self) -> None:
        for source, output in self._copies:
            output.copy_(source)

    def lead_in(self) -> None:
        self._repeat(self._lead_in)

    def calls(self) -> None:
        self._repeat(self._calls)

    def each_pair(self) -> None:
        self._repeat(self._pairs)

    def close(self) -> None:
        pass

    def _rota(self, count: int) -> list[Pair]:
        return [self._pairs[i % len(self._pairs)] for i in range(count)]

    def _repeat(self, rota: list[Pair]) -> None:
        launch = self._launch
        for source, output in rota:
            launch(source, output)


class GraphRun:
    def __init__(self, backend: Backend, pairs: list[Pair], counts: Counts) -> None:
        self._eager = EagerRun(backend, pairs, counts)
        self._timed = _captured(backend, self._eager.calls)
        self._each = _captured(backend, self._eager.each_pair) if backend.in_place else self._timed
        self.restore = self._eager.restore

    def lead_in(self) -> None:
        self._timed.replay()

    def calls(self) -> None:
        self._timed.replay()

    def each_pair(self) -> None:
        self._each.replay()

    def close(self) -> None:
        torch.cuda.synchronize()
        self._timed.reset()
        self._each.reset()


def _captured(backend: Backend, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`work` as a graph on the current stream. Other threads (NCCL's watchdog) may use CUDA meanwhile."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    torch.cuda.synchronize()
    with backend.capture(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph
