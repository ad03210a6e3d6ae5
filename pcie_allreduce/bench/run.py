"""A whole run in order: settle, measure pass by pass, stamp, write, show, judge."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pcie_allreduce import nvml
from pcie_allreduce.bench import environment, inputs, report
from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.bench.backends.catalogue import Pass
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed, run_pass
from pcie_allreduce.bench.rows import Document
from pcie_allreduce.bench.settings import CannotRun, Request, Settings, settle
from pcie_allreduce.plots.canvas import check_plot
from pcie_allreduce.plots.latency import draw_bench

OK, FAILED, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 130


def main(
    request: Request, input_path: str | None, json_path: str | None, debug: bool = False, plot_path: str | None = None
) -> int:
    """Runs the benchmark for a command line. 0: all measured and right; 1: a rank failed or a sum is wrong; 2: what was
    asked cannot be run here. The table goes to stdout, everything else to stderr."""
    try:
        if json_path:
            check_writable(Path(json_path))
        if plot_path:
            check_plot(plot_path)
        document, failures = bench(request, input_path)
    except CannotRun as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    except KeyboardInterrupt:
        print("interrupted; all ranks have been ended", file=sys.stderr)
        return INTERRUPTED
    if json_path and document.rows:
        document.write(Path(json_path))
        print(f"written: {json_path}", file=sys.stderr)
    report.show(document, Console())
    if plot_path and document.rows:
        draw_bench(document, nvml.read(), plot_path)
        print(f"drawn: {plot_path}", file=sys.stderr)
    for failure in failures:
        print((debug and failure.detail) or failure, file=sys.stderr)
    wrong = report.complaints(document.rows)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return FAILED if failures or wrong else OK


def bench(request: Request, input_path: str | None = None) -> tuple[Document, list[RanksFailed]]:
    """The document of a run and the passes that failed. `CannotRun` where nothing could be started."""
    recorded = inputs.Recorded(input_path) if input_path else None
    here = environment.machine()
    settings = settle(replace(request, recording=recorded.recording if recorded else None), here)
    for notice in settings.notices:
        print(notice, file=sys.stderr)
    document = Document(environment.stamp(settings, here), [])
    if recorded:
        document.environment["input"] = inputs.describe(recorded)
    return document, _measure(settings, document)


def _measure(settings: Settings, document: Document) -> list[RanksFailed]:
    passes, not_run = catalogue.plan(
        settings.backends,
        settings.algorithms,
        settings.device,
        settings.ranks,
        settings.gpus,
        norms=settings.hidden is not None,
        dtype=settings.dtype,
        halves=settings.halves,
    )
    document.environment["not_run"] = not_run
    failures = []
    with progress_bar() as progress:
        task = progress.add_task("starting ranks", total=_steps(settings, passes))

        def hear(message: Message) -> None:
            if message.kind == "facts":
                environment.add_rank_facts(document.environment, message.value)
            elif message.kind == "tuned":
                document.environment["tuned"] = message.value
            elif message.kind == "row":
                document.rows.append(message.value)
            elif message.kind == "not run":
                name, reason = message.value
                not_run[name] = reason
            else:
                progress.update(task, advance=1, description=message.value)

        for work in passes:
            try:
                run_pass(settings, work, hear)
            except RanksFailed as failure:
                failures.append(failure)
                not_run |= {job.backend: f"failed: {failure}" for job in work.jobs}
    if not (document.rows or failures):
        raise CannotRun("nothing to run: " + "; ".join(f"{name}: {not_run[name]}" for name in settings.backends))
    return failures


def check_writable(path: Path) -> None:
    """Before the run, not after it."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise CannotRun(f"--json {path}: no file can be written there")


def _steps(settings: Settings, passes: list[Pass]) -> int:
    """Every job tells of its repeats and its check, for every size in every mode."""
    cases = len(settings.modes) * len(settings.sizes)
    return cases * (settings.repeats + 1) * sum(len(work.jobs) for work in passes)


def progress_bar() -> Progress:
    """Drawn on stderr, and only where a person sees it."""
    console = Console(stderr=True)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True, refresh_per_second=2)
