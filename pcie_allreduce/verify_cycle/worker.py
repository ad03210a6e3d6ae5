"""What one rank does: all row counts, all joints; their repeats take turns, as in the benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pcie_allreduce.bench.backends.base import Backend, Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.backends.make import make
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.bench.case import Message, Tell
from pcie_allreduce.bench.correctness import digest
from pcie_allreduce.bench.procedure import GpuClock, HostClock, Stopwatch, fold, time_repeat
from pcie_allreduce.bench.report import OURS
from pcie_allreduce.bench.settings import Settings
from pcie_allreduce.verify_cycle.joints import Alone, Fused, Joint, Reduced
from pcie_allreduce.verify_cycle.layers import make_layer
from pcie_allreduce.verify_cycle.passes import EagerPass, GraphPass, Model, counts_for, embedding, make_pass
from pcie_allreduce.verify_cycle.report import PassRow
from pcie_allreduce.verify_cycle.shape import BANK, Shape


@dataclass(frozen=True)
class Asked:
    shape: Shape
    rows: tuple[int, ...]


@dataclass
class _Entry:
    joint: Joint
    run: EagerPass | GraphPass
    repeats: list[list[float]] = field(default_factory=list)


def measure(asked: Asked, seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """All passes of one set of rank processes. Collective."""
    most = max(asked.rows)
    backends = [make(job, seat, asked.shape.nbytes(most)) for job in jobs]
    model = make_model(asked.shape, most, seat)
    for rows in asked.rows:
        Case(settings, seat, model, rows, tell).measure([Alone(), *joints(backends)])
    seat.barrier()
    for backend in backends:  # not after an error: NCCL's way out could wait for ranks that are lost
        backend.close()


def joints(backends: Sequence[Backend]) -> list[Joint]:
    """Ours comes twice: with a norm behind it, and fused with it."""
    found: list[Joint] = []
    for backend in backends:
        found.append(Reduced(backend))
        if isinstance(backend, Ours):
            found.append(Fused(backend))
    return found


def make_model(shape: Shape, rows: int, seat: Seat) -> Model:
    generator = torch.Generator(seat.device).manual_seed(seat.rank + 1)
    bank = [make_layer(shape, rows, generator, seat.device) for _ in range(min(BANK, shape.layers))]
    norm = torch.linspace(0.9, 1.1, shape.hidden, device=seat.device).to(torch.bfloat16)
    return Model(shape, bank, norm, embedding(rows, shape.hidden, seat.rank, seat.world, seat.device))


def _reference(joints: Sequence[Joint]) -> int:
    """Another's sums, where there are some; else our own."""
    others = [index for index, joint in enumerate(joints) if index and not joint.label.startswith(OURS)]
    return (others or [len(joints) - 1])[0]


class Case:
    """One row count. Collective: every rank makes the same cases in the same order."""

    def __init__(self, settings: Settings, seat: Seat, model: Model, rows: int, tell: Tell) -> None:
        self._settings, self._seat, self._model = settings, seat, model
        self._rows, self._tell = rows, tell
        self._counts = counts_for(settings.device)

    def measure(self, joints: Sequence[Joint]) -> None:
        entries = [_Entry(joint, self._prepare(joint)) for joint in joints]
        watch: Stopwatch = GpuClock() if self._settings.gpus else HostClock()
        for repeat in range(self._settings.repeats):
            for entry in entries:
                entry.repeats.append(time_repeat(entry.run, watch, self._seat.barrier, self._counts))
                entry.joint.check()
                self._step(entry.joint, f"repeat {repeat + 1} of {self._settings.repeats}")
        alone = self._timing(entries[0]).us_median
        outputs = [entry.run.output.float().cpu() for entry in entries]
        reference = outputs[_reference([entry.joint for entry in entries])]
        for entry, output in zip(entries, outputs, strict=True):
            self._tell(Message("row", self._row(entry, alone, output, reference)))
        for entry in entries:
            entry.run.close()

    def _prepare(self, joint: Joint) -> EagerPass | GraphPass:
        run = make_pass(self._model, joint, self._rows, self._counts.warmup)
        joint.check()
        self._step(joint, "prepared")
        return run

    def _row(self, entry: _Entry, alone_us: float, output: torch.Tensor, reference: torch.Tensor) -> PassRow:
        timing, reduces = self._timing(entry), not isinstance(entry.joint, Alone)
        distance = float((output - reference).norm() / reference.norm())
        seen = self._seat.gather((digest([output]), distance))
        distances = [math.inf if math.isnan(distance) else round(distance, 6) for _, distance in seen]
        shape = self._model.shape
        example = self._model.embedding[: self._rows]
        return PassRow(
            backend=entry.joint.label,
            algorithm=entry.joint.algorithm(example),
            world=self._seat.world,
            gpus=self._settings.gpus,
            rows=self._rows,
            bytes=shape.nbytes(self._rows),
            all_reduces=shape.all_reduces if reduces else 0,
            us_median=round(timing.us_median, 1),
            us_min=round(timing.us_min, 1),
            us_max=round(timing.us_max, 1),
            alone_us=round(alone_us, 1),
            replays=timing.replays,
            repeats=timing.repeats,
            identical=len({bits for bits, _ in seen}) == 1 if reduces else None,
            distance=max(distances) if reduces else None,
        )

    def _timing(self, entry: _Entry) -> Any:
        return fold(self._seat.gather(entry.repeats))

    def _step(self, joint: Joint, what: str) -> None:
        self._tell(Message("step", f"{joint.label}, {self._rows} row(s), {what}"))
