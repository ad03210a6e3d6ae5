"""Starts the rank processes of one pass, listens to them, and leaves none behind.

When one rank fails its peers fail too, a moment later and for a worse reason ("connection closed by peer"). So after
the first failure the others are given a short while, and the cause that is told is the one that made the others: a
process that died without a word, else the first that spoke.

Ranks are forked from a server that has imported torch and nothing else, since importing it eight times takes longer
than measuring. The server never touches CUDA, and gives each rank the environment that this process has at that time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from pcie_allreduce.bench import worker
from pcie_allreduce.bench.backends.catalogue import Pass
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.settings import Settings
from pcie_allreduce.errors import PcieAllReduceError

SILENCE_LIMIT = 240.0  # seconds without a word from any rank; starting eight of them on two busy cores takes a minute
GRACE = 3.0  # seconds in which the peers of a failed rank may tell more
END_LIMIT = 10.0  # seconds for a rank to leave after its last message, and again after SIGTERM


class RanksFailed(PcieAllReduceError):
    """A rank did not finish. `detail` is its traceback, empty where it left none."""

    def __init__(self, sentence: str, detail: str = "") -> None:
        super().__init__(sentence)
        self.detail = detail


class RankProcess(NamedTuple):
    number: int
    process: BaseProcess
    pipe: Connection


class _Failure(NamedTuple):
    rank: int
    silent: bool
    sentence: str
    detail: str


def run_pass(
    settings: Settings,
    work: Pass,
    hear: Callable[[Message], None],
    silence: float = SILENCE_LIMIT,
    body: worker.Body = worker.measure,
) -> None:
    """Runs one pass to its end; `hear` gets the messages of rank 0. `RanksFailed` says which rank failed and why."""
    with tempfile.TemporaryDirectory(prefix="pcie-allreduce-bench-") as folder:
        rest = (settings, work.jobs, {**os.environ, **work.environment}, f"{folder}/store")
        ranks = [start(number, worker.main, body, number, *rest) for number in range(settings.ranks)]
        finished = False
        try:
            _listen(ranks, hear, silence)
            finished = True
        finally:
            reap(ranks, gently=finished)


def start(number: int, target: Callable[..., None], *args: Any) -> RankProcess:
    """A process that runs target(*args, pipe), where it sends its messages."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "numpy"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, theirs), daemon=True)
    process.start()
    theirs.close()
    return RankProcess(number, process, ours)


def _listen(ranks: list[RankProcess], hear: Callable[[Message], None], silence: float) -> None:
    talking = {rank.pipe: rank for rank in ranks}
    failures: list[_Failure] = []
    limit = time.monotonic() + silence
    while talking:
        ready = wait(list(talking), max(0.0, limit - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = talking[pipe]  # type: ignore[index]
            message = _receive(rank)
            if isinstance(message, _Failure):
                failures.append(message)
            elif message.kind != "done":
                hear(message)
                limit = limit if failures else time.monotonic() + silence
                continue
            del talking[rank.pipe]
        if failures:
            limit = min(limit, time.monotonic() + GRACE)
    if failures:
        raise _blame(failures)
    if talking:
        silent = ", ".join(str(rank.number) for rank in talking.values())
        raise RanksFailed(f"no rank said anything for {silence:.0f} s; not finished: rank(s) {silent}")


def _receive(rank: RankProcess) -> Message | _Failure:
    try:
        message: Message = rank.pipe.recv()
    except (EOFError, OSError):
        rank.process.join(END_LIMIT)
        return _Failure(rank.number, True, f"rank {rank.number} {ending(rank.process.exitcode)}", "")
    if message.kind == "failed":
        sentence, detail = message.value
        return _Failure(rank.number, False, f"rank {rank.number} failed: {sentence}", detail)
    return message


def ending(exitcode: int | None) -> str:
    """How a process ended that sent no last message."""
    if exitcode is None:
        return "closed its pipe and went on running"
    if exitcode < 0:
        return f"was ended by {signal.Signals(-exitcode).name}"
    return f"left with exit code {exitcode} and no message"


def _blame(failures: list[_Failure]) -> RanksFailed:
    cause = next((failure for failure in failures if failure.silent), failures[0])
    return RanksFailed(cause.sentence, cause.detail)


def reap(ranks: list[RankProcess], gently: bool) -> None:
    """Ends all processes: `gently` lets them leave by themselves first."""
    for end in ((None,) if gently else ()) + (BaseProcess.terminate, BaseProcess.kill):
        for rank in ranks:
            if end is not None and rank.process.is_alive():
                end(rank.process)
        limit = time.monotonic() + END_LIMIT
        for rank in ranks:
            rank.process.join(max(0.0, limit - time.monotonic()))
    for rank in ranks:
        rank.pipe.close()
