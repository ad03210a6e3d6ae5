"""Ours beside the fallback, at three sizes: whoever is slower must not serve.

On GPUs both are timed in CUDA graphs, as engines run them; a fallback that no graph can hold, call by call. Ours runs
over a channel made for this, since its calls would end the warm-up that users' first calls are given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from pcie_allreduce.probe.measurements import Compared

SIZES = (14336, 131072, 1048576)
CALLS, REPEATS, WARMUP = 20, 5, 3

Work = Callable[[], Any]


def name_of(group: Any, device: torch.device) -> str:
    """What the fallback is, as far as its speed depends on it."""
    backend = _backend(group, device)
    if backend != "nccl":
        return backend
    # NCCL_VERSION is no setting: images have it.
    told = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NCCL_") and k != "NCCL_VERSION"]
    return " ".join([backend, *_nccl_version(), *told])


def sizes_for(max_bytes: int) -> tuple[int, ...]:
    return tuple(sorted({min(size, max_bytes // 4 * 4) for size in SIZES}))


class Contest:
    """One rank's part of it; all ranks take each step together.

    Ours end by a deadline; the fallback's calls do not. So whatever can fail on one rank alone, memory above all, comes
    where no rank can be left waiting in a call of the fallback: before the first of them, or behind all of a step.
    """

    def __init__(self, device: torch.device, group: Any, sizes: tuple[int, ...]) -> None:
        self._device = device
        self._group = group
        self._captures = device.type == "cuda" and _backend(group, device) == "nccl"
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        inputs = [torch.zeros(nbytes // 2, dtype=torch.bfloat16, device=device) for nbytes in sizes]
        self._pairs = [(x, torch.empty_like(x)) for x in inputs]
        self._theirs: list[Work] = []

    def ours(self, call: Callable[[torch.Tensor, torch.Tensor], None]) -> list[float]:
        """Microseconds of a call at each size. `call` sums its first argument into its second, on this stream."""
        with self._on_stream():
            return self._times(self._series_of([partial(call, x, out) for x, out in self._pairs]))

    def prepare_theirs(self) -> None:
        with self._on_stream():
            calls: list[Work] = [partial(dist.all_reduce, out, group=self._group) for _, out in self._pairs]
            self._theirs = self._series_of(calls)

    def theirs(self) -> list[float]:
        """Microseconds of a call of the fallback at each size."""
        with self._on_stream():
            return self._times(self._theirs)

    def _series_of(self, calls: list[Work]) -> list[Work]:
        """Of each, CALLS in a row. A capture can fail on one rank alone, so that all of them come last."""
        if not self._captures:
            return [partial(_repeat, call) for call in calls]
        for call in calls:
            for _ in range(WARMUP):
                call()
        self._synchronize()
        return [self._captured(call) for call in calls]

    def _captured(self, call: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            _repeat(call)
        return graph.replay

    def _times(self, series: list[Work]) -> list[float]:
        return [_time(work, self._synchronize) for work in series]

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def slowest(sizes: tuple[int, ...], ranks: list[tuple[list[float], list[float]]]) -> tuple[Compared, ...]:
    """Of what all ranks have timed, ours and the fallback's."""
    ours, theirs = ([max(us) for us in zip(*times, strict=True)] for times in zip(*ranks, strict=True))
    return tuple(starmap(Compared, zip(sizes, ours, theirs, strict=True)))


def _repeat(call: Work) -> None:
    for _ in range(CALLS):
        call()


def _time(work: Work, synchronize: Work) -> float:
    """Microseconds of one of its calls, the median of a few series."""
    taken = []
    for _ in range(WARMUP + REPEATS):
        begun = time.perf_counter()
        work()
        synchronize()
        taken.append((time.perf_counter() - begun) * 1e6 / CALLS)
    return median(taken[WARMUP:])


def _nccl_version() -> list[str]:
    """Of the library that is loaded; nothing where torch was built without it."""
    try:
        return [".".join(map(str, torch.cuda.nccl.version()))]  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return []


def _backend(group: Any, device: torch.device) -> str:
    """A group may have one for each kind of device, "cpu:gloo,cuda:nccl"."""
    named = str(dist.get_backend_config(group))
    parts = dict(part.split(":", 1) for part in named.split(",") if ":" in part)
    return parts.get(device.type, named)
