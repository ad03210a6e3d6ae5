"""A sweep in order: settle, measure setting by setting in fresh rank processes, ours at the end, write, show, judge."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pcie_allreduce.bench import environment, report
from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.bench.backends.catalogue import Job, Pass
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed, run_pass
from pcie_allreduce.bench.rows import Row
from pcie_allreduce.bench.run import CANNOT_RUN, FAILED, INTERRUPTED, OK, check_writable, progress_bar
from pcie_allreduce.bench.settings import CannotRun, Machine, Request, Settings, settle
from pcie_allreduce.nccl_sweep import worker
from pcie_allreduce.nccl_sweep.knobs import AS_CHOSEN, VARIABLES, Outcome, best_of, count, descend, everything
from pcie_allreduce.nccl_sweep.knobs import environment as variables
from pcie_allreduce.nccl_sweep.knobs import told as setting_told

SIZES = (14336, 43008, 57344)  # 1, 3 and 4 rows of a verify pass
WAYS = {"descent": descend, "full": everything}
SILENCE = 90.0  # seconds: a setting that NCCL does not survive must not hold up the others for long
MIB = 2**20
Say = Callable[[str], None]


class Sweep:
    """Runs passes of one job each, and keeps all rows and the stamp."""

    def __init__(self, settings: Settings, stamp: dict[str, Any], say: Say) -> None:
        self.settings, self.stamp, self._say = settings, stamp, say
        self.rows: list[Row] = []

    def measure(self, job: Job, setting: tuple[str | None, ...]) -> Outcome:
        rows: list[Row] = []
        memory: list[int | None] = []

        def hear(message: Message) -> None:
            if message.kind == "facts":
                environment.add_rank_facts(self.stamp, message.value)
            elif message.kind == "memory":
                memory.append(message.value)
            elif message.kind == "row":
                rows.append(message.value)

        self._say(f"{job.label}: {setting_told(setting) if job.backend == 'nccl' else 'ours'}")
        try:
            work = Pass(variables(setting), (job,))
            run_pass(self.settings, work, hear, silence=SILENCE, body=worker.measure)
        except RanksFailed as failure:
            return Outcome(setting, failure=str(failure).partition("\n")[0])
        self.rows += rows
        return Outcome(setting, tuple((row.bytes, row.us_median) for row in rows), memory[0])


def main(request: Request, way: str, json_path: str | None) -> int:
    """0: measured and right; 1: ours or what NCCL chooses failed, or a sum is wrong; 2: it cannot be run here."""
    try:
        here = environment.machine()
        settings = settled(request, here)
        if json_path:
            check_writable(Path(json_path))
        stamp = environment.stamp(settings, here)
        with progress_bar() as progress:
            task = progress.add_task("starting", total=count(way) + 2)
            sweep = Sweep(settings, stamp, lambda text: progress.update(task, advance=1, description=text))
            ours = sweep.measure(Job("pcie_allreduce", "auto"), AS_CHOSEN)
            outcomes = list(WAYS[way](lambda setting: sweep.measure(Job("nccl"), setting)))
    except CannotRun as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    except KeyboardInterrupt:
        print("interrupted; all ranks have been ended", file=sys.stderr)
        return INTERRUPTED
    if json_path:
        Path(json_path).write_text(json.dumps(document(sweep, ours, outcomes), indent=1) + "\n")
        print(f"written: {json_path}", file=sys.stderr)
    show(settings, stamp, ours, outcomes, Console(width=120))
    wrong = report.complaints(sweep.rows)
    wrong += [f"{name}: {each.failure}" for name, each in (("ours", ours), ("nccl", outcomes[0])) if each.failure]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return FAILED if wrong else OK


def settled(request: Request, here: Machine) -> Settings:
    """Graphs, and a GPU for each rank; else `CannotRun`."""
    settings = settle(replace(request, sizes=request.sizes or SIZES), here)
    if not settings.gpus:
        raise CannotRun("--nccl-sweep: NCCL needs GPUs, and there are none here")
    already = [name for name in VARIABLES if name in os.environ]
    if already:
        raise CannotRun(f"--nccl-sweep sets {', '.join(already)} itself: unset it")
    _, not_run = catalogue.plan(("nccl",), ("auto",), settings.device, settings.ranks, settings.gpus)
    if "nccl" in not_run:
        raise CannotRun(f"--nccl-sweep: {not_run['nccl']}")
    return replace(settings, modes=settings.modes[:1])


def document(sweep: Sweep, ours: Outcome, outcomes: list[Outcome]) -> dict[str, Any]:
    best = best_of(outcomes)
    return {
        "environment": sweep.stamp,
        "ours": _entry(ours),
        "nccl": [{"variables": variables(each.setting), **_entry(each)} for each in outcomes],
        "best": None if best is None else variables(best.setting),
        "rows": [asdict(row) for row in sweep.rows],
    }


def _entry(outcome: Outcome) -> dict[str, Any]:
    return {"us": dict(outcome.us), "memory_bytes": outcome.memory, "failure": outcome.failure or None}


def show(settings: Settings, stamp: dict[str, Any], ours: Outcome, outcomes: list[Outcome], console: Console) -> None:
    console.print(stamp["label"], highlight=False, markup=False)
    title = f"{settings.dtype}, {settings.ranks} ranks, {settings.modes[0]}: microseconds per call, slowest rank"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("NCCL's settings")
    for heading in ("MiB of a rank", *(f"{size:,} B" for size in settings.sizes)):
        table.add_column(heading, justify="right", no_wrap=True)
    best = best_of(outcomes)
    for outcome in outcomes:
        name = setting_told(outcome.setting) + (" (best)" if outcome is best else "")
        table.add_row(*_cells(name, outcome, settings.sizes))
    table.add_row(*_cells("pcie_allreduce", ours, settings.sizes))
    console.print(table)
    if best is not None:
        console.print(sentence(ours, outcomes[0], best), highlight=False, soft_wrap=True)


def _cells(name: str, outcome: Outcome, sizes: tuple[int, ...]) -> list[str]:
    if outcome.failure:
        return [f"{name}: {outcome.failure}", *[""] * (len(sizes) + 1)]
    memory = "" if outcome.memory is None else f"{outcome.memory / MIB:.0f}"
    us = dict(outcome.us)
    return [name, memory, *(report.microseconds(us[size]) for size in sizes)]


def sentence(ours: Outcome, chosen: Outcome, best: Outcome) -> str:
    """What the settings are worth, in time and memory, and what ours is worth beside them."""
    told = [f"best for NCCL: {setting_told(best.setting)}"]
    if not chosen.failure:
        told.append(f"{chosen.mean_us / best.mean_us:.2f} times as quick as what NCCL chooses by itself")
        if chosen.memory is not None and best.memory is not None:
            told.append(f"{(chosen.memory - best.memory) / MIB:+.0f} MiB saved on each GPU")
    if not ours.failure:
        told.append(
            f"ours is {best.mean_us / ours.mean_us:.2f} times as quick as that (geometric means over the sizes)"
        )
    return "; ".join(told)
