"""One rank's experiments on a channel: what csrc/protocol/probe.h does, in microseconds, GB/s and words.

All ranks make the same calls in the same order, idle ones too, since the number that an experiment's signals carry
counts them. None is what a rank gets that waited in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from pcie_allreduce import _C
from pcie_allreduce.probe.measurements import OK

if TYPE_CHECKING:
    from pcie_allreduce.transport import Transport

PACK = 16
BURSTS = (1, 64, 4096)  # packs: 16 bytes, 1 KB, 64 KB
PAYLOAD_PACKS = _C.PROBE_OUTBOX[1]
_FINE, _MISSING, _CHANGED = 1, 2, 3
_SLICES = 32  # results of one source
_ROUNDS = 4096  # numbers that an experiment may use


class Kind(IntEnum):
    FILL = 0
    BURSTS = 1
    PING = 2
    PUSH = 3
    PULL = 4
    POLL = 5
    FENCE = 6
    TEAR = 7


class Result(NamedTuple):
    """As the native code tells it; nanoseconds by the rank's own clock."""

    place: int
    finding: int
    where: int
    expected: int
    got: int
    began: int
    ended: int


class Pulled(NamedTuple):
    gbps: float
    found: str


class Experiments:
    """`deadline`: seconds after which an experiment ends whatever happens."""

    def __init__(self, transport: Transport, rank: int, world: int, deadline: float) -> None:
        self._transport = transport
        self._rank = rank
        self._world = world
        self._deadline = deadline
        self._number = 0
        self.problem: str | None = None  # of this rank, which then goes on in name only: its peers must not wait

    def burst(self, size: int) -> list[str]:
        """What became of the known bytes of every rank, BURSTS[size] packs of each: "ok" for this one's own."""
        others = _mask(peer for peer in range(self._world) if peer != self._rank)
        first, packs = sum(BURSTS[:size]), BURSTS[size]
        told = [OK] * self._world
        for result in self._run(Kind.BURSTS, to=others, source=others, first=first, packs=packs):
            source = result.place // _SLICES
            if result.finding != _FINE and told[source] == OK:
                told[source] = self._told(result, packs * PACK)
        return told

    def ping(self, peer: int | None, rounds: int) -> float | None:
        """Half of the time there and back: the least of the batches, as load only adds. None of an idle rank, too."""
        if peer is None:
            self._skip()
            return None
        results = self._run(Kind.PING, to=_mask([peer]), repeats=rounds)
        times = [result.ended - result.began for result in results if result.finding == _FINE]
        return min(times) / rounds / 2e3 if times else None

    def push(self, to: Sequence[int], source: Sequence[int], repeats: int) -> float | None:
        """GB/s that this rank stores to the ranks `to`, from when all of both have begun until all have seen it."""
        meets = _mask([*to, *source])
        if not meets:
            self._skip()
            return None
        results = self._run(
            Kind.PUSH, meet=meets, to=_mask(to), source=_mask(source), packs=PAYLOAD_PACKS, repeats=repeats
        )
        return _rate(results, len(to) * repeats)

    def pull(self, source: Sequence[int], meets: Sequence[int], repeats: int) -> Pulled | None:
        """GB/s that this rank loads from the ranks `source`, from when all of `meets` have begun."""
        if not source:
            self._skip()
            return None
        results = self._run(Kind.PULL, meet=_mask(meets), source=_mask(source), packs=PAYLOAD_PACKS, repeats=repeats)
        rate = _rate(results, len(source) * repeats)
        changed = any(result.finding == _CHANGED for result in results)
        return None if rate is None else Pulled(rate, "were read changed" if changed else OK)

    def once(self, kind: Kind, peer: int | None, packs: int, repeats: int) -> float | None:
        """Nanoseconds of one of `repeats` looks (POLL), or stores of `packs` and a fence (FENCE), by one lane. None of
        an idle rank."""
        if peer is None:
            self._skip()
            return None
        results = self._run(kind, to=_mask([peer]), packs=packs, repeats=repeats)
        return (results[0].ended - results[0].began) / repeats if results else None

    def tear(self, peer: int | None, writes: bool, repeats: int) -> list[Result]:
        """One result a lane: `expected` packs seen, `got` changes among them, `where` of them torn."""
        if peer is None:
            self._skip()
            return []
        mask = _mask([peer])
        return self._run(Kind.TEAR, to=mask if writes else 0, source=0 if writes else mask, repeats=repeats)

    def _run(
        self,
        kind: Kind,
        meet: int = 0,
        to: int = 0,
        source: int = 0,
        first: int = 0,
        packs: int = 0,
        repeats: int = 1,
    ) -> list[Result]:
        self._number += _ROUNDS
        words = (kind, self._number, meet, to, source, first, packs, repeats)
        try:
            return [] if self.problem is not None else run(self._transport, words, self._deadline)
        except RuntimeError as error:
            self.problem = f"rank {self._rank}: {error}"
            return []

    def _skip(self) -> None:
        self._number += _ROUNDS

    def _told(self, result: Result, nbytes: int) -> str:
        if result.finding == _MISSING:
            return f"did not arrive within {self._deadline:g} s (of {nbytes:,} bytes)"
        word = f"word {result.where} of {nbytes:,} bytes"
        return f"arrived changed ({word} is {result.got:#010x} instead of {result.expected:#010x})"


def fill(transport: Transport) -> None:
    """Makes this rank's own memory readable for `pull`, before any peer maps it."""
    run(transport, (Kind.FILL, 1, 0, 0, 0, 0, 0, 1), 60.0)


def run(transport: Transport, words: Sequence[int], deadline: float) -> list[Result]:
    return [Result(*each) for each in transport.measure(words, deadline)]


def _rate(results: Sequence[Result], payloads: int) -> float | None:
    """From the first block's beginning to the last one's end."""
    if not results or any(result.finding == _MISSING for result in results):
        return None
    took = max(result.ended for result in results) - min(result.began for result in results)
    return payloads * PAYLOAD_PACKS * PACK / max(took, 1)


def _mask(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in set(ranks))
