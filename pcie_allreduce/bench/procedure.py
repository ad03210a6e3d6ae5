"""How a number comes about.

An all-reduce ends on one rank when the others have sent, so a rank that starts early times the lateness of its peers.
Before each replay the ranks therefore meet at a barrier of the host, then run untimed calls of the backend itself
(the lead-in, which lets them go within a microsecond of each other and keeps a GPU busy while the timed work is
queued), and only then the timed calls, back to back. All counts are fixed before the ranks start.

    us per call of a replay = time of the slowest rank / calls
    a repeat                = median over its replays
    us_median, us_min, us_max = median, lowest and highest repeat
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

LAYER_CALLS = 122  # all-reduces in the layers of one verify pass: 61 layers, attention output and MoE output of each
PAIRS = 4  # rotating pairs of input and output: no call finds its own last output where it writes


@dataclass(frozen=True)
class Counts:
    """`calls` timed calls per replay behind `lead_in` untimed ones; `replays` per repeat; `warmup` calls at first."""

    calls: int
    lead_in: int
    replays: int
    warmup: int


def counts_for(device: str, mode: str, nbytes: int, world: int) -> Counts:
    """Counts from what all ranks know. In a graph the lead-in is one whole graph."""
    if device == "cuda":
        lead_in = LAYER_CALLS if mode == "graph" else 8
        return Counts(calls=LAYER_CALLS, lead_in=lead_in, replays=36, warmup=16)
    replays = (
        6 if world > 2 else 25 if nbytes <= 65536 else 12
    )  # many short blocks: some go by without being interrupted
    return Counts(calls=20 if world == 2 else 10, lead_in=2, replays=replays, warmup=PAIRS)


@dataclass(frozen=True)
class Timing:
    """Microseconds per call, as the module says."""

    us_median: float
    us_min: float
    us_max: float
    replays: int
    repeats: int


class Stopwatch(Protocol):
    def start(self) -> None: ...

    def stop(self) -> float:
        """Microseconds since `start`, when all work queued between the two is done."""


class HostClock:
    """For CPU ranks, whose calls return when their work is done."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._begun = 0.0

    def start(self) -> None:
        self._begun = self._now()

    def stop(self) -> float:
        return (self._now() - self._begun) * 1e6


class GpuClock:
    """Two events on the current stream: the host's own time counts only where the GPU had to wait for it."""

    def __init__(self) -> None:
        self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        self._begin.record()

    def stop(self) -> float:
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e3


class Timed(Protocol):
    """What is timed; `execution` has the two kinds."""

    def restore(self) -> None:
        """Untimed: gives in-place backends their inputs back."""

    def lead_in(self) -> None: ...

    def calls(self) -> None: ...


def time_repeat(work: Timed, watch: Stopwatch, barrier: Callable[[], None], counts: Counts) -> list[float]:
    """This rank's microseconds per call, one value per replay."""
    times = []
    for _ in range(counts.replays):
        work.restore()
        barrier()
        work.lead_in()
        watch.start()
        work.calls()
        times.append(watch.stop() / counts.calls)
    return times


def fold(ranks: Sequence[Sequence[Sequence[float]]]) -> Timing:
    """One Timing from the times of all ranks, indexed [rank][repeat][replay]."""
    shapes = {tuple(len(repeat) for repeat in rank) for rank in ranks}
    shape = next(iter(shapes), ())
    if len(shapes) != 1 or len(set(shape)) != 1 or 0 in shape:
        raise ValueError(f"ranks must bring equally many repeats of equally many replays, got {sorted(shapes)}")
    medians = [statistics.median(map(max, zip(*replays, strict=True))) for replays in zip(*ranks, strict=True)]
    return Timing(statistics.median(medians), min(medians), max(medians), replays=shape[0], repeats=len(medians))
