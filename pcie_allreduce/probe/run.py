"""`pcie-allreduce probe` in order: settle, probe in rank processes, write the document, tell the verdict."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.backends.make import make
from pcie_allreduce.bench.backends.torch_distributed import TorchDistributed
from pcie_allreduce.bench.case import Message, Tell
from pcie_allreduce.bench.ranks import RanksFailed, run_pass
from pcie_allreduce.bench.run import CANNOT_RUN, FAILED, INTERRUPTED, OK, check_writable
from pcie_allreduce.bench.settings import CannotRun, Request, Settings, settle
from pcie_allreduce.construction import Wishes, agree, describe
from pcie_allreduce.plots.canvas import check_plot
from pcie_allreduce.plots.heat import draw_probe
from pcie_allreduce.probe import told
from pcie_allreduce.probe.decision import Verdict
from pcie_allreduce.probing import judge
from pcie_allreduce.rendezvous import Rendezvous

# Whatever was kept; and sizes that were tuned are compared, too.
VARIABLES = {"PCIE_ALLREDUCE_PROBE": "new", "PCIE_ALLREDUCE_TUNED": "0"}
TIMEOUT = 30.0


@dataclass
class Outcome:
    environment: dict[str, Any]
    verdict: Verdict | None = None
    seconds: float = 0.0


def main(request: Request, json_path: str | None, debug: bool = False, plot_path: str | None = None) -> int:
    """Exit codes: 0 the ranks can meet; 1 the fallback serves, or a rank failed; 2 what was asked cannot be run here.
    The verdict goes to stdout, everything else to stderr."""
    try:
        if json_path:
            check_writable(Path(json_path))
        if plot_path:
            check_plot(plot_path)
        here = environment.machine()
        settings = settle(request, here)
        outcome = _probe(settings, Outcome(environment.stamp(settings, here)))
    except CannotRun as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    except RanksFailed as failure:
        print((debug and failure.detail) or failure, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; all ranks have been ended", file=sys.stderr)
        return INTERRUPTED
    verdict = outcome.verdict
    assert verdict is not None  # told before "done"
    if json_path:
        Path(json_path).write_text(json.dumps(document(outcome, verdict), indent=1) + "\n")
        print(f"written: {json_path}", file=sys.stderr)
    if plot_path:
        drawn = draw_probe(document(outcome, verdict), plot_path)
        print(f"drawn: {plot_path}" if drawn else "not drawn: nothing could be measured", file=sys.stderr)
    for notice in (*settings.notices, f"probed in {outcome.seconds:.1f} s"):
        print(notice, file=sys.stderr)
    print(environment.label(settings))
    print(told.text(verdict))
    return FAILED if verdict.transport == "fallback" else OK


def document(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    """All that was measured, and what was made of it."""
    stamp = {name: value for name, value in outcome.environment.items() if name not in ("method", "input", "settings")}
    return {"environment": stamp, "seconds": round(outcome.seconds, 2), "verdict": verdict.to_dict()}


def _probe(settings: Settings, outcome: Outcome) -> Outcome:
    fallback = "nccl" if settings.gpus else "gloo"
    passes, outcome.environment["not_run"] = catalogue.plan(
        (fallback,), ("auto",), settings.device, settings.ranks, settings.gpus
    )
    jobs = passes[0].jobs if passes else ()

    def hear(message: Message) -> None:
        if message.kind == "facts":
            environment.add_rank_facts(outcome.environment, message.value)
        elif message.kind == "verdict":
            outcome.verdict, outcome.seconds = message.value

    run_pass(settings, catalogue.Pass(VARIABLES, jobs), hear, body=probe)
    return outcome


def probe(seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """The ranks' part. Tells the "verdict", and the seconds that it took without the fallback's own set-up."""
    others = [make(job, seat, settings.sizes[0]) for job in jobs]
    group = next((other.group for other in others if isinstance(other, TorchDistributed)), None)
    rendezvous = Rendezvous(seat.gloo)
    wishes = Wishes(seat.device, None, TIMEOUT, TIMEOUT, "auto", "auto", group is not None, True)
    member = rendezvous.stage("checking the arguments", lambda: describe(wishes, seat.rank, seat.world))
    members, survey = agree(rendezvous, member)
    begun = time.monotonic()
    verdict = judge(rendezvous, members, survey, group)
    tell(Message("verdict", (verdict, time.monotonic() - begun)))
    rendezvous.gather(None)
    for other in others:
        other.close()
