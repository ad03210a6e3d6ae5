"""One size in one mode, for all backends that share these rank processes.

All of them are prepared before any is timed, and their repeats take turns, so that what drifts on the machine (clocks,
neighbours) meets all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pcie_allreduce.bench.backends.base import Backend, Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.correctness import NOT_JUDGED, Verdict, judge
from pcie_allreduce.bench.execution import EagerRun, GraphRun, Pair, Run, make_pairs
from pcie_allreduce.bench.inputs import DTYPES, Expectation, Source, Workload, expect, shifted
from pcie_allreduce.bench.procedure import PAIRS, GpuClock, HostClock, Stopwatch, Timing, counts_for, fold, time_repeat
from pcie_allreduce.bench.rows import Row
from pcie_allreduce.bench.settings import ITEM_BYTES, Settings
from pcie_allreduce.errors import PcieAllReduceError


@dataclass(frozen=True)
class Message:
    """What a rank tells the parent: "facts" (dict), "tuned" (the cached steps that ours uses, if any), "not run"
    (backend and reason), "step" (label), "row" (Row), "failed" (two texts), "done"; in tuning "ladder" (key and
    candidates)."""

    kind: str
    value: Any = None


Tell = Callable[[Message], None]


class WrongSum(PcieAllReduceError):
    """What was to be timed does not sum right."""


@dataclass
class _Entry:
    job: Job
    backend: Backend
    pairs: list[Pair]
    run: Run
    repeats: list[list[float]] = field(default_factory=list)


class Case:
    """Collective: every rank makes the same cases in the same order."""

    def __init__(self, settings: Settings, seat: Seat, workload: Workload, mode: str, nbytes: int, tell: Tell) -> None:
        self._settings, self._seat, self._workload = settings, seat, workload
        self._mode, self._nbytes, self._tell = mode, nbytes, tell
        self._elements = nbytes // ITEM_BYTES[settings.dtype]
        self._counts = counts_for(settings.device, mode, nbytes, seat.world)

    def measure(self, backends: Sequence[tuple[Job, Backend]], judge_first: bool = False) -> None:
        """`judge_first`: nothing is timed unless all have summed whole numbers exactly; else `WrongSum`."""
        entries = [self._prepare(job, backend) for job, backend in backends]
        verdicts: Iterable[Verdict] = self._all_exact(entries) if judge_first else self._verdicts(entries)
        self._time(entries)
        for entry, verdict in zip(entries, verdicts, strict=True):
            self._tell(Message("row", self._row(entry, fold(self._seat.gather(entry.repeats)), verdict)))
            self._step(entry, "check")
        for entry in entries:
            entry.run.close()

    def _prepare(self, job: Job, backend: Backend) -> _Entry:
        pairs = make_pairs(PAIRS, self._elements, DTYPES[self._settings.dtype], self._seat.device, backend.zeros)
        self._fill(pairs)
        run: Run = (GraphRun if self._mode == "graph" else EagerRun)(backend, pairs, self._counts)
        return _Entry(job, backend, pairs, run)

    def _fill(self, pairs: list[Pair]) -> None:
        timed = self._workload.timed(self._seat.rank, self._elements)
        for index, pair in enumerate(pairs):
            pair.source.copy_(shifted(timed, index))

    def _time(self, entries: list[_Entry]) -> None:
        watch: Stopwatch = GpuClock() if self._settings.gpus else HostClock()
        for repeat in range(self._settings.repeats):
            for entry in entries:
                entry.repeats.append(time_repeat(entry.run, watch, self._seat.barrier, self._counts))
                entry.backend.check()
                self._step(entry, f"repeat {repeat + 1} of {self._settings.repeats}")

    def _expect(self, source: Source, exactly: bool) -> list[Expectation]:
        expectation = expect(source, self._seat.rank, self._seat.world, self._elements, exactly)
        return [expectation.for_pair(pair) for pair in range(PAIRS)]

    def _all_exact(self, entries: list[_Entry]) -> list[Verdict]:
        verdicts = list(self._verdicts(entries))
        wrong = [entry.job.label for entry, verdict in zip(entries, verdicts, strict=True) if not verdict.exact]
        if wrong:
            raise WrongSum(f"sums of {self._nbytes} bytes are not exact: {', '.join(wrong)}")
        for entry in entries:
            self._fill(entry.pairs)
        return verdicts

    def _verdicts(self, entries: list[_Entry]) -> Iterator[Verdict]:
        integers = self._expect(self._workload.integers, exactly=True)
        reals = self._expect(self._workload.reals, exactly=False)
        for entry in entries:
            yield self._judge(entry, integers, reals)

    def _judge(self, entry: _Entry, integers: list[Expectation], reals: list[Expectation]) -> Verdict:
        if not entry.backend.reduces:
            return NOT_JUDGED
        verdict = judge(entry.run, entry.pairs, integers, reals, self._seat.gather)
        entry.backend.check()
        return verdict

    def _row(self, entry: _Entry, timing: Timing, verdict: Verdict) -> Row:
        return Row(
            backend=entry.backend.name,
            transport=entry.backend.transport,
            algorithm=entry.backend.algorithm(entry.pairs[0].source),
            world=self._seat.world,
            gpus=self._settings.gpus,
            dtype=self._settings.dtype,
            bytes=self._nbytes,
            mode=self._mode,
            us_median=round(timing.us_median, 3),
            us_min=round(timing.us_min, 3),
            us_max=round(timing.us_max, 3),
            replays=timing.replays,
            repeats=timing.repeats,
            exact=verdict.exact,
            identical=verdict.identical,
            correctly_rounded=verdict.correctly_rounded,
            fused=entry.job.norm == "fused",
            rows=self._elements // self._settings.hidden if self._settings.hidden else None,
            hidden=self._settings.hidden,
        )

    def _step(self, entry: _Entry, what: str) -> None:
        self._tell(Message("step", f"{entry.job.label}, {self._mode}, {self._nbytes:,} bytes, {what}"))
