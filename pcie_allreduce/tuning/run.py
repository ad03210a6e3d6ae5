"""Tuning in order: settle, measure in rank processes, decide, keep in the cache, write the document, show the table."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pcie_allreduce import cache
from pcie_allreduce.bench import environment, report
from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed, run_pass
from pcie_allreduce.bench.rows import Row
from pcie_allreduce.bench.run import CANNOT_RUN, FAILED, INTERRUPTED, OK, check_writable, progress_bar
from pcie_allreduce.bench.settings import CannotRun, Request, Settings, settle
from pcie_allreduce.plan import Tuned
from pcie_allreduce.plots.canvas import check_plot
from pcie_allreduce.plots.latency import draw_tune
from pcie_allreduce.tuning import ranks
from pcie_allreduce.tuning.decision import MARGIN, SIZES, Candidate, Choice, Measured, decide, table

EMULATED = "ranks share a GPU, and an emulated run does not choose algorithms for real machines (--force writes it)"


@dataclass
class Outcome:
    """What the ranks have told; `rows` in the order of the ladder."""

    environment: dict[str, Any]
    key: cache.Key | None = None
    ladder: list[list[Candidate]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def choices(self) -> list[Choice]:
        rows = iter(self.rows)
        return [decide([Measured(candidate, next(rows)) for candidate in listed]) for listed in self.ladder]


def main(
    request: Request,
    json_path: str | None,
    dry_run: bool,
    force: bool,
    debug: bool = False,
    plot_path: str | None = None,
) -> int:
    """Exit codes as the benchmark's: 0 tuned; 1 a rank failed or a sum is wrong; 2 what was asked cannot be run here.
    The table goes to stdout, everything else to stderr. Nothing is kept unless all went well."""
    try:
        here = environment.machine()
        settings = settle(replace(request, sizes=tuple(sorted(request.sizes or SIZES))), here)
        settings = replace(settings, modes=settings.modes[:1])  # graphs, where there are GPUs
        why_not = "--dry-run" if dry_run else EMULATED if settings.emulated and not force else None
        _check(json_path, plot_path, keeps=why_not is None)
        for notice in (*settings.notices, *([f"emulated: {EMULATED}"] if settings.emulated else [])):
            print(notice, file=sys.stderr)
        outcome = _measure(settings, Outcome(environment.stamp(settings, here)))
    except CannotRun as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    except RanksFailed as failure:
        print((debug and failure.detail) or failure, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; all ranks have been ended, and nothing was written", file=sys.stderr)
        return INTERRUPTED
    wrong = report.complaints(outcome.rows)
    return _conclude(settings, outcome, wrong, "sums are wrong" if wrong else why_not, json_path, plot_path)


def _check(json_path: str | None, plot_path: str | None, keeps: bool) -> None:
    """Before the run, not after it."""
    if json_path:
        check_writable(Path(json_path))
    if plot_path:
        check_plot(plot_path)
    try:
        if keeps:
            cache.prepare(cache.folder())
    except (OSError, RuntimeError) as error:
        raise CannotRun(f"the cache cannot be written ({error}); --dry-run measures all the same") from error


def _measure(settings: Settings, outcome: Outcome) -> Outcome:
    """Ranks that know no table, or they would measure what an earlier run has chosen as untuned."""
    wanted = ("pcie_allreduce", "nccl" if settings.gpus else "gloo")
    passes, outcome.environment["not_run"] = catalogue.plan(
        wanted, ("auto",), settings.device, settings.ranks, settings.gpus
    )
    work = catalogue.Pass({**passes[0].environment, "PCIE_ALLREDUCE_TUNED": "0"}, passes[0].jobs)
    with progress_bar() as progress:
        task = progress.add_task("starting ranks", total=None)

        def hear(message: Message) -> None:
            if message.kind == "facts":
                environment.add_rank_facts(outcome.environment, message.value)
            elif message.kind == "ladder":
                outcome.key, outcome.ladder = message.value
                progress.update(task, total=(settings.repeats + 1) * sum(map(len, outcome.ladder)))
            elif message.kind == "row":
                outcome.rows.append(message.value)
            else:
                progress.update(task, advance=1, description=message.value)

        run_pass(settings, work, hear, body=ranks.measure)
    return outcome


def _conclude(
    settings: Settings,
    outcome: Outcome,
    wrong: list[str],
    why_not: str | None,
    json_path: str | None,
    plot_path: str | None,
) -> int:
    choices = outcome.choices()
    steps = table(choices)
    assert outcome.key is not None  # told before any row
    kept, failed = None, bool(wrong)
    replaced = [step for step in cache.load_tuned(outcome.key)[0] or () if step.dtype_bytes == steps[0].dtype_bytes]
    try:
        kept = None if why_not else cache.save_tuned(outcome.key, steps)
    except OSError as error:  # a full disk must not cost the measurement
        why_not, failed = f"{error}", True
    told = document(outcome, choices, steps, kept.name if kept else None, why_not)
    if json_path:
        Path(json_path).write_text(json.dumps(told, indent=1) + "\n")
        print(f"written: {json_path}", file=sys.stderr)
    if plot_path:
        draw_tune(told, plot_path)
        print(f"drawn: {plot_path}", file=sys.stderr)
    show(settings, outcome.environment, choices, Console())
    if kept and replaced:
        print(f"replaced: the earlier table, of sizes up to {replaced[-1].up_to:,} bytes; only these sizes count now")
    print(f"kept in {kept}" if kept else f"not kept: {why_not}")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return FAILED if failed else OK


def document(
    outcome: Outcome, choices: list[Choice], steps: Tuned, kept: str | None, why_not: str | None
) -> dict[str, Any]:
    """All candidates of all sizes, so that whoever reads it can judge the plan and the choice."""
    assert outcome.key is not None
    return {
        "environment": outcome.environment,
        "key": asdict(outcome.key),
        "margin": MARGIN,
        "sizes": [choice.to_dict() for choice in choices],
        "steps": [asdict(step) for step in steps],
        "kept": kept,
        "not_kept": why_not,
    }


def show(settings: Settings, stamp: dict[str, Any], choices: list[Choice], console: Console) -> None:
    console.print(stamp["label"], highlight=False, markup=False)
    title = f"{settings.dtype}, {settings.ranks} ranks, {settings.modes[0]}: microseconds per call, slowest rank"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("bytes", "untuned plan", "us", "chosen", "us", "gain", "fallback us"):
        shown.add_column(heading, justify="left" if heading in ("untuned plan", "chosen") else "right", no_wrap=True)
    for choice in choices:
        fallback = next((each.us for each in choice.measured if each.candidate.step.fallback), None)
        shown.add_row(
            f"{choice.nbytes:,}",
            choice.untuned.candidate.label,
            report.microseconds(choice.untuned.us),
            choice.chosen.candidate.label,
            report.microseconds(choice.chosen.us),
            f"{choice.gain_percent:.0f} %" if choice.chosen is not choice.untuned else "",
            "" if fallback is None else report.microseconds(fallback),
        )
    console.print(shown)
    worst = max(choices, key=lambda choice: choice.untuned.us / choice.best.us)
    over = 100 * (worst.untuned.us / worst.best.us - 1)
    print(f"the untuned plan takes at most {over:.0f} % longer than the best of ours (at {worst.nbytes:,} bytes)")
