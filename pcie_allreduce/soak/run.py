"""Starts the ranks of a soak, again after one was killed, adds up what they saw, and judges."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RankProcess, ending, reap, start
from pcie_allreduce.bench.run import check_writable
from pcie_allreduce.bench.settings import CannotRun, Machine, Request, Settings, settle
from pcie_allreduce.soak import worker
from pcie_allreduce.soak.plan import KILLED, Asked
from pcie_allreduce.soak.player import Counts

SILENCE_LIMIT = 240.0  # seconds without a word from any rank
LONGEST_TIMEOUT = SILENCE_LIMIT / 2  # or ranks that wait for one that is too late would be taken for silent ones
SHOWN = 20  # complaints


@dataclass
class Tally:
    """`calls`, `replays` and `bytes` (of payload) are rank 0's: every rank makes the same. `wrong` are all ranks'."""

    seconds: float = 0.0
    generations: int = 0
    rounds: int = 0
    calls: int = 0
    replays: int = 0
    bytes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    survived: int = 0
    wrong: int = 0
    complaints: list[str] = field(default_factory=list)


def main(request: Request, seconds: float, timeout: float, seed: int, kills: bool, json_path: str | None) -> int:
    """Runs a soak for a command line. 0: everything right; 1: something was wrong; 2: it cannot be run here."""
    here = environment.machine()
    try:
        if not (seconds > 0 and 0 < timeout <= LONGEST_TIMEOUT):
            asked_for = f"--seconds {seconds:g}, --timeout {timeout:g}"
            raise CannotRun(f"{asked_for}: both must be positive, and --timeout at most {LONGEST_TIMEOUT:g}")
        settings = settle(request, here)
        if json_path:
            check_writable(Path(json_path))
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 2
    asked = Asked(settings.ranks, seconds, timeout, seed, kills)
    stamp = _stamp(settings, here, asked)
    tally = soak(asked, settings.gpus)
    print(environment.label(settings))
    print(told(tally))
    if json_path:
        Path(json_path).write_text(json.dumps({"environment": stamp, "soak": asdict(tally)}, indent=1) + "\n")
    return 1 if tally.complaints else 0


def _stamp(settings: Settings, here: Machine, asked: Asked) -> dict[str, Any]:
    """What stands before the figures; the benchmark's own entries are left out."""
    stamp = environment.stamp(settings, here)
    for other in ("method", "input", "not_run", "nccl", "p2p", "gpus"):
        del stamp[other]
    return {**stamp, "settings": {**asdict(asked), "gpus": settings.gpus}}


def told(tally: Tally) -> str:
    """The last lines of a soak."""
    faults = ", ".join(f"{count} {name}" for name, count in sorted(tally.faults.items())) or "none"
    lines = [
        f"{tally.seconds:.0f} s, {tally.rounds} rounds, {tally.calls} calls, {tally.replays} graph replays, "
        f"{tally.bytes / 1e9:.2f} GB of payload a rank",
        f"faults injected: {sum(tally.faults.values())} ({faults}); survived: {tally.survived}",
        f"wrong results: {tally.wrong}",
    ]
    return "\n".join([*tally.complaints[:SHOWN], *lines])


def soak(asked: Asked, gpus: int) -> Tally:
    """Generation after generation of rank processes until the time is over, one at least; a kill ends one."""
    tally = Tally()
    begun = time.monotonic()
    while not tally.generations or time.monotonic() - begun < asked.seconds:
        complaints = len(tally.complaints)
        with tempfile.TemporaryDirectory(prefix="pcie-allreduce-soak-") as folder:
            args = (asked, gpus, tally.generations, begun + asked.seconds, f"{folder}/store")
            ranks = [start(number, worker.main, number, *args) for number in range(asked.ranks)]
            finished = False
            try:
                _Listener(ranks, tally).listen()
                finished = len(tally.complaints) == complaints
            finally:
                reap(ranks, gently=finished)
        tally.generations += 1
        if any("failed" in told or "silent" in told for told in tally.complaints[complaints:]):
            break  # processes that cannot go on would only fail again
    tally.seconds = time.monotonic() - begun
    return tally


class _Listener:
    def __init__(self, ranks: list[RankProcess], tally: Tally) -> None:
        self._ranks = ranks
        self._tally = tally
        self._counts = [Counts() for _ in ranks]
        self._trouble: str = "none"
        self._faults: Counter[str] = Counter()
        self._troubled: set[int] = set()  # rounds of which a rank complained

    def listen(self) -> None:
        talking: dict[Any, RankProcess] = {rank.pipe: rank for rank in self._ranks}
        while talking:
            ready = wait(list(talking), SILENCE_LIMIT)
            if not ready:
                silent = ", ".join(str(rank.number) for rank in talking.values())
                self._tally.complaints.append(f"rank(s) {silent} silent for {SILENCE_LIMIT:.0f} s")
                break
            for pipe in ready:
                if self._is_last(talking[pipe]):
                    del talking[pipe]
        self._add_up()

    def _is_last(self, rank: RankProcess) -> bool:
        try:
            message: Message = rank.pipe.recv()
        except (EOFError, OSError):
            rank.process.join(1.0)
            if self._trouble != KILLED or rank.process.exitcode != -9:
                self._tally.complaints.append(f"rank {rank.number} failed: it {ending(rank.process.exitcode)}")
            return True
        if message.kind == "trouble" and rank.number == 0:
            self._trouble = message.value
            self._faults[message.value] += message.value != "none"
        elif message.kind == "counts":
            self._counts[rank.number] = message.value
        elif message.kind in ("complaint", "failed"):
            told = message.value if message.kind == "complaint" else f"failed: {message.value[0]}"
            self._tally.complaints.append(f"rank {rank.number}: {told}")
            self._troubled.add(sum(self._faults.values()))
        return message.kind in ("done", "failed")

    def _add_up(self) -> None:
        tally, first = self._tally, max(self._counts, key=lambda counts: counts.rounds)
        tally.rounds += first.rounds
        tally.calls += first.calls
        tally.replays += first.replays
        tally.bytes += first.bytes
        tally.wrong += sum(counts.wrong for counts in self._counts)
        faults = +self._faults
        for name, count in faults.items():
            tally.faults[name] = tally.faults.get(name, 0) + count
        tally.survived += sum(faults.values()) - len(self._troubled)
