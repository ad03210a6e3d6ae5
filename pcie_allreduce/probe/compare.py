"""Ours beside the fallback, at three sizes: whoever is slower must not serve.

On GPUs both are timed in CUDA graphs, as engines run them; a fallback that no graph can hold, call by call. Ours runs
over a channel made for this, since its calls would end the warm-up that users' first calls are given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
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
    told = sorted(os.environ.items()) if backend == "nccl" else []
    # NCCL_VERSION is no setting: images have it.
    return " ".join([backend, *(f"{k}={v}" for k, v in told if k.startswith("NCCL_") and k != "NCCL_VERSION")])


def sizes_for(max_bytes: int) -> tuple[int, ...]:
    return tuple(sorted({min(size, max_bytes // 4 * 4) for size in SIZES}))


def times(
    device: torch.device, group: Any, ours: Callable[[torch.Tensor, torch.Tensor], None], sizes: tuple[int, ...]
) -> list[tuple[float, float]]:
    """Microseconds of a call on this rank, ours and the fallback's, at each size. All ranks call it together.

    `ours` sums its first argument into its second, on the current stream.
    """
    captures = device.type == "cuda" and _backend(group, device) == "nccl"
    found = []
    for nbytes in sizes:
        x = torch.zeros(nbytes // 2, dtype=torch.bfloat16, device=device)
        out = torch.empty_like(x)
        theirs = partial(dist.all_reduce, out, group=group)
        found.append((_time(partial(ours, x, out), device, captures), _time(theirs, device, captures)))
    return found


def slowest(sizes: tuple[int, ...], ranks: list[list[tuple[float, float]]]) -> tuple[Compared, ...]:
    """Of the `times` of all ranks."""
    return tuple(
        Compared(nbytes, max(ours for ours, _ in told), max(theirs for _, theirs in told))
        for nbytes, told in zip(sizes, zip(*ranks, strict=True), strict=True)
    )


def _time(call: Work, device: torch.device, captures: bool) -> float:
    """Microseconds of a call, the median of a few series."""
    if device.type == "cpu":
        return _eager(call, _nothing)
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        if not captures:
            return _eager(call, torch.cuda.current_stream().synchronize)
        for _ in range(WARMUP):
            call()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            for _ in range(CALLS):
                call()
        return _series(graph.replay, torch.cuda.current_stream().synchronize)


def _eager(call: Work, synchronize: Work) -> float:
    def series() -> None:
        for _ in range(CALLS):
            call()

    return _series(series, synchronize)


def _series(work: Work, synchronize: Work) -> float:
    taken = []
    for _ in range(WARMUP + REPEATS):
        begun = time.perf_counter()
        work()
        synchronize()
        taken.append((time.perf_counter() - begun) * 1e6 / CALLS)
    return median(taken[WARMUP:])


def _backend(group: Any, device: torch.device) -> str:
    """A group may have one for each kind of device, "cpu:gloo,cuda:nccl"."""
    named = str(dist.get_backend_config(group))
    parts = dict(part.split(":", 1) for part in named.split(",") if ":" in part)
    return parts.get(device.type, named)


def _nothing() -> None:
    pass
