"""What a group measures over one channel, in order; the ranks exchange what they found after each part.

Once bytes are lost or changed nothing more is measured: the verdict on this way is clear, and every further wait would
last until its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from pcie_allreduce.probe.experiments import BURSTS, Experiments
from pcie_allreduce.probe.measurements import OK, Matrix, Traffic, cells, transposed

T = TypeVar("T")

ROUNDS = 32  # round trips in a batch of the second look, so that a clock of a microsecond is fine enough
TRIES = 3
LONG_US = 500.0  # a way that needs no second look


class Meeting(Protocol):
    """`Rendezvous`, as far as it is needed here."""

    rank: int
    world_size: int

    def gather(self, value: T, /) -> list[T]: ...


def measure(meeting: Meeting, experiments: Experiments, repeats: int) -> Traffic:
    """`repeats`: how often 256 KiB go to or come from one peer while a rate is measured."""
    meeting.gather(None)  # nobody waits yet while another is still being set up
    traffic = _measured(meeting, experiments, repeats)
    problems = [problem for problem in meeting.gather(experiments.problem) if problem is not None]
    return Traffic(problem="; ".join(problems)) if problems else traffic


def _measured(meeting: Meeting, experiments: Experiments, repeats: int) -> Traffic:
    for size in range(len(BURSTS)):
        arrived = transposed(_rows(meeting, experiments.burst(size)))
        if any(found != OK for _, _, found in cells(arrived)):
            return Traffic(arrived=arrived)
    rough = _latencies(meeting, experiments, lambda a, b: 1)
    if len(list(cells(rough))) < meeting.world_size * (meeting.world_size - 1):
        return Traffic(arrived=_lost(arrived, rough))
    latency = _latencies(meeting, experiments, lambda a, b: ROUNDS if (rough[a][b] or 0.0) < LONG_US else 1)
    push, pull, pulled = _alone(meeting, experiments, repeats)
    push_together, pull_together = _together(meeting, experiments, max(1, repeats // (meeting.world_size - 1)))
    return Traffic(None, arrived, latency, push, pull, push_together, pull_together, pulled)


def latencies(meeting: Meeting, experiments: Experiments) -> Matrix[float]:
    """A short look, which leaves the mailboxes of a channel as they were."""
    meeting.gather(None)
    return _latencies(meeting, experiments, lambda a, b: 1)


def tournament(world: int) -> Iterator[list[int | None]]:
    """Rounds in which every rank meets another, each pair once: entry r is whom rank r meets."""
    even = world + world % 2
    ring = list(range(1, even))
    for turn in range(even - 1):
        order = [0, *ring[turn:], *ring[:turn]]
        met: list[int | None] = [None] * world
        for a, b in zip(order[: even // 2], reversed(order[even // 2 :]), strict=True):
            if a < world and b < world:
                met[a], met[b] = b, a
        yield met


def _latencies(meeting: Meeting, experiments: Experiments, rounds: Callable[[int, int], int]) -> Matrix[float]:
    row: list[float | None] = [None] * meeting.world_size
    for met in tournament(meeting.world_size):
        peer = met[meeting.rank]
        meeting.gather(None)  # a pair that was waiting for its deadline must not be waited for in vain
        us = experiments.ping(peer, rounds(meeting.rank, peer) if peer is not None else 1)
        if peer is not None:
            row[peer] = us
    rows = _rows(meeting, row)  # the lower rank of a pair serves, and its time has no beginning before the other's
    return tuple(tuple(rows[min(a, b)][max(a, b)] for b in range(len(rows))) for a in range(len(rows)))


def _alone(
    meeting: Meeting, experiments: Experiments, repeats: int
) -> tuple[Matrix[float], Matrix[float], Matrix[str]]:
    """By rising distance, so that a rank that was just busy rests."""
    me, world = meeting.rank, meeting.world_size
    pushed, pulled, found = ([None] * world for _ in range(3))  # type: tuple[list[Any], list[Any], list[Any]]
    for distance in range(1, world):
        for a in range(world):
            b = (a + distance) % world
            meeting.gather(None)
            rate = experiments.push([b] if me == a else [], [a] if me == b else [], repeats)
            if me == a:
                pushed[b] = rate
            loaded = experiments.pull([a] if me == b else [], [], repeats)
            if loaded is not None:
                pulled[a], found[a] = loaded
    return _rows(meeting, pushed), transposed(_rows(meeting, pulled)), transposed(_rows(meeting, found))


def _together(
    meeting: Meeting, experiments: Experiments, repeats: int
) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """The best of a few tries, since whatever else the machine does only takes away."""
    others = [peer for peer in range(meeting.world_size) if peer != meeting.rank]
    pushed, pulled = [], []
    for _ in range(TRIES):
        meeting.gather(None)
        pushed.append(experiments.push(others, others, repeats))
        meeting.gather(None)
        loaded = experiments.pull(others, others, repeats)
        pulled.append(None if loaded is None else loaded.gbps)
    gathered = meeting.gather((_most(pushed), _most(pulled)))
    return tuple(push for push, _ in gathered), tuple(pull for _, pull in gathered)


def _most(rates: list[float | None]) -> float | None:
    return max((rate for rate in rates if rate is not None), default=None)


def _rows(meeting: Meeting, row: list[Any]) -> Matrix[Any]:
    return tuple(tuple(each) for each in meeting.gather(row))


def _lost(arrived: Matrix[str], latency: Matrix[float]) -> Matrix[str]:
    """A pair whose pings were lost has lost bytes, whichever way."""
    world = range(len(arrived))
    return tuple(
        tuple(arrived[a][b] if a == b or latency[a][b] is not None else "went there, and no answer came" for b in world)
        for a in world
    )
