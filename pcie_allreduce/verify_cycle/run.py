"""A run in order: settle, measure in rank processes, write the document, show it, judge."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.bench.backends.catalogue import Pass
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed, run_pass
from pcie_allreduce.bench.report import OURS
from pcie_allreduce.bench.run import CANNOT_RUN, FAILED, INTERRUPTED, OK, check_writable, progress_bar
from pcie_allreduce.bench.settings import CannotRun, Machine, Request, Settings, settle
from pcie_allreduce.plots.bars import draw_passes
from pcie_allreduce.plots.canvas import check_plot
from pcie_allreduce.verify_cycle import report, worker
from pcie_allreduce.verify_cycle.report import PassRow, Speculation
from pcie_allreduce.verify_cycle.shape import KIMI, TINY
from pcie_allreduce.verify_cycle.worker import Asked

ROWS = (1, 3, 4)
MOST_ROWS = 64
DEFAULTS = {"cuda": ("pcie_allreduce", "nccl"), "cpu": ("pcie_allreduce", "gloo")}


def main(
    request: Request,
    rows: tuple[int, ...],
    change: dict[str, int],
    speculation: Speculation,
    json_path: str | None,
    plot_path: str | None = None,
) -> int:
    """0: all measured and right; 1: a rank failed or a pass is wrong; 2: what was asked cannot be run here."""
    try:
        here = environment.machine()
        settings, asked = settled(request, here, rows, change, speculation)
        if json_path:
            check_writable(Path(json_path))
        if plot_path:
            check_plot(plot_path)
        for notice in settings.notices:
            print(notice, file=sys.stderr)
        stamp = environment.stamp(settings, here)
        passes, failures = _measure(settings, asked, stamp)
    except CannotRun as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    except KeyboardInterrupt:
        print("interrupted; all ranks have been ended", file=sys.stderr)
        return INTERRUPTED
    document = {
        "environment": stamp,
        "shape": asdict(asked.shape),
        "speculation": asdict(speculation),
        "passes": [report.told(row, passes, speculation) for row in passes],
    }
    if json_path and passes:
        Path(json_path).write_text(json.dumps(document, indent=1) + "\n")
        print(f"written: {json_path}", file=sys.stderr)
    if plot_path and passes:
        draw_passes(document, plot_path)
        print(f"drawn: {plot_path}", file=sys.stderr)
    report.show(document, Console(width=120))
    wrong = [*map(str, failures), *report.complaints(passes)]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return FAILED if wrong else OK


def show_file(path: str, plot_path: str | None) -> int:
    """Of an earlier run, here or elsewhere."""
    try:
        if plot_path:
            check_plot(plot_path)
        document = json.loads(Path(path).read_text())
        report.show(document, Console(width=120))
        if plot_path:
            draw_passes(document, plot_path)
    except (CannotRun, OSError) as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    except (ValueError, KeyError, TypeError) as error:
        print(f"{path} is not what `verify-cycle --json` writes: {type(error).__name__}: {error}", file=sys.stderr)
        return CANNOT_RUN
    return OK


def settled(
    request: Request, here: Machine, rows: tuple[int, ...], change: dict[str, int], speculation: Speculation
) -> tuple[Settings, Asked]:
    """`CannotRun` where a value is none."""
    settings = settle(request, here)
    if not request.backends:
        settings = replace(settings, backends=DEFAULTS[settings.device])
    if "floor" in settings.backends:
        raise CannotRun("--backends floor: it sums nothing, and a pass without communication is measured anyhow")
    if "torch-symm-mem" in settings.backends:
        raise CannotRun(
            "--backends torch-symm-mem: it sums what lies in symmetric memory, and the layers of a pass do not"
        )
    for row in rows:
        if not 1 <= row <= MOST_ROWS:
            raise CannotRun(f"--rows {row}: a pass here has 1 to {MOST_ROWS} rows")
    for name, value in change.items():
        if not 1 <= value <= 1 << 20:
            raise CannotRun(f"--{name} {value}: it must be within 1 and {1 << 20}")
    if not (speculation.acceptance >= 1 and 0 < speculation.share <= 1):
        asked = f"--acceptance {speculation.acceptance:g}, --verify-share {speculation.share:g}"
        raise CannotRun(f"{asked}: they must be at least 1, and above 0 and at most 1")
    shape = replace(KIMI if settings.gpus else TINY, **change)
    sizes = tuple(shape.nbytes(row) for row in rows)
    return replace(settings, sizes=sizes, modes=settings.modes[:1]), Asked(shape, tuple(dict.fromkeys(rows)))


def _measure(settings: Settings, asked: Asked, stamp: dict[str, Any]) -> tuple[list[PassRow], list[RanksFailed]]:
    passes, stamp["not_run"] = catalogue.plan(
        settings.backends, settings.algorithms, settings.device, settings.ranks, settings.gpus
    )
    if not passes:
        raise CannotRun(
            "nothing to run: " + "; ".join(f"{name}: {stamp['not_run'][name]}" for name in settings.backends)
        )
    rows: list[PassRow] = []
    failures = []
    with progress_bar() as progress:
        task = progress.add_task("starting ranks", total=_steps(settings, asked, passes))

        def hear(message: Message) -> None:
            if message.kind == "facts":
                environment.add_rank_facts(stamp, message.value)
            elif message.kind == "row":
                rows.append(message.value)
            else:
                progress.update(task, advance=1, description=message.value)

        for work in passes:
            try:
                run_pass(settings, work, hear, body=partial(worker.measure, asked))
            except RanksFailed as failure:
                failures.append(failure)
    return rows, failures


def _steps(settings: Settings, asked: Asked, passes: list[Pass]) -> int:
    """Every joint tells of its preparation and its repeats: each job's, one without communication, and ours fused."""
    jobs = [job.backend for work in passes for job in work.jobs]
    joints = len(passes) + len(jobs) + jobs.count(OURS)
    return len(asked.rows) * (settings.repeats + 1) * joints
