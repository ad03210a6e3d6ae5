"""From measurements to one verdict. Pure, so that tests can say what becomes of each box that was published.

Bytes that are lost or changed rule a way out. What is only slow gives way to what is faster, and serves where nothing
else does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from math import isqrt
from statistics import median
from typing import Any

from pcie_allreduce.plan import Step, Tuned
from pcie_allreduce.probe import causes
from pcie_allreduce.probe.measurements import OK, Compared, Measurements, Traffic, cells
from pcie_allreduce.topology import Islands

SLOW_US = {"cuda": 10.0, "cpu": 50_000.0}  # one way; PCIe takes 0.6 to 1.7, staging by the driver some hundred
APART = 1.25  # by which two islands are farther from each other than inside; behind switches it is 1.5
COLLAPSED = 0.25  # of what a rank stores alone; two islands behind one link each leave 0.46
READS_KEEP = 2.0  # times as fast as stores, where stores have collapsed
NARROW = 0.5  # of the median pair
MARGIN = 0.03  # of the time of ours, by which the fallback must be better


@dataclass(frozen=True)
class Options:
    """What this caller allows: to serve by a fallback, to read from each other, to meet in host memory."""

    fallback: bool
    pull: bool
    host: bool


@dataclass(frozen=True)
class Verdict:
    """How the ranks of a group meet, and why; the same on all of them.

    Attributes:
        transport: "peer", "pull", "host", "cpu", or "fallback".
        reason: a clause.
        findings: what is wrong, each with its ranks and what usually causes it.
        islands: two groups of ranks that are nearer inside than across, if any were seen.
        measured: what it rests on; None where nothing was measured.
        origin: where the measurements are from.
    """

    transport: str
    reason: str
    findings: tuple[str, ...] = ()
    islands: Islands | None = None
    measured: Measurements | None = None
    origin: str = "measured now"

    @property
    def compared(self) -> tuple[Compared, ...]:
        """With the fallback, where there is one."""
        return self.measured.compared if self.measured is not None else ()

    @property
    def line(self) -> str:
        """The verdict in one line."""
        head = (
            f"fallback: because {self.reason}" if self.transport == "fallback" else f"{self.transport}: {self.reason}"
        )
        if self.measured is None:
            return head
        return f"{head}; {_told_islands(self)}; {_told_comparison(self)} ({self.origin})"

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {
            "transport": self.transport,
            "reason": self.reason,
            "findings": list(self.findings),
            "islands": None if self.islands is None else [sorted(group) for group in self.islands],
            "fallback_wins_at": [each.nbytes for each in self.compared if fallback_wins(each)],
            "origin": self.origin,
            "line": self.line,
            "measured": None if self.measured is None else self.measured.to_dict(),
        }


def decide(measured: Measurements, options: Options) -> Verdict:
    """The verdict on a group; the comparison with the fallback is not part of it, see `steps`."""
    islands = find_islands(measured)
    verdict = Verdict(measured.transport, _praise(measured.direct), islands=islands, measured=measured)
    wrong = wrongs(measured.direct, measured.device)
    late = () if wrong else _too_slow(measured.direct, measured.device)
    collapse = () if wrong or late else collapses(measured)
    if not (wrong or late or collapse):
        return replace(verdict, findings=narrows(measured))
    verdict = replace(verdict, findings=wrong or late or collapse)
    because = verdict.findings[0]
    if collapse and options.pull and not _pull_is_wrong(measured.direct):  # of what is late, flags would be, too
        return replace(verdict, transport="pull", reason=f"ranks read what others would have written: {because}")
    host = measured.host
    serves = host is not None and not wrongs(host, measured.device) and not _too_slow(host, measured.device)
    if serves and options.host:
        return replace(verdict, transport="host", reason=f"ranks meet in host memory: {because}", islands=None)
    if options.fallback or wrong:
        return replace(verdict, transport="fallback", reason=because, islands=None)
    return replace(verdict, reason=f"nothing better is there, though {because}")


def wrongs(traffic: Traffic, device: str) -> tuple[str, ...]:
    """Why this way must not be used: it cannot be set up, or bytes were lost or changed."""
    if traffic.problem is not None:
        cause = causes.of_problem(traffic.problem)
        return (traffic.problem if cause is None else f"{traffic.problem} ({cause})",)
    return tuple(
        f"rank {a} to rank {b}: bytes {found} "
        f"({causes.of(causes.CHANGED if 'changed' in found else causes.MISSING, device)})"
        for a, b, found in cells(traffic.arrived)
        if found != OK
    )


def failures(measured: Measurements) -> tuple[str, ...]:
    """Bytes of the direct way that were lost, changed or late, loads among them; or why it could not be set up."""
    return (
        *wrongs(measured.direct, measured.device),
        *_too_slow(measured.direct, measured.device),
        *(f"rank {a} to rank {b}: bytes {found}" for a, b, found in cells(measured.direct.pulled) if found != OK),
    )


def collapses(measured: Measurements) -> tuple[str, ...]:
    """Stores that collapse when all ranks store at once."""
    if not _collapsed(measured):
        return ()
    direct = measured.direct
    alone = median(rate for _, _, rate in cells(direct.push_gbps))
    rank = min(range(measured.world), key=lambda r: direct.push_together_gbps[r] or 0.0)
    together = direct.push_together_gbps[rank] or 0.0
    loads = min(rate or 0.0 for rate in direct.pull_together_gbps)
    return (
        f"stores collapse: rank {rank} stores {together:.3g} GB/s to the ranks {_others(rank, measured.world)} while "
        f"all do, and {alone:.3g} alone; loads keep {loads:.3g} ({causes.of(causes.COLLAPSE, measured.device)})",
    )


def narrows(measured: Measurements) -> tuple[str, ...]:
    """Pairs that carry much less than others; they serve all the same."""
    rates = list(cells(measured.direct.push_gbps))
    usual = median(rate for _, _, rate in rates) if rates else 0.0
    return tuple(
        f"rank {a} to rank {b}: {rate:.3g} GB/s, and {usual:.3g} between most ({causes.NARROW})"
        for a, b, rate in rates
        if measured.device == "cuda" and rate < NARROW * usual
    )


def find_islands(measured: Measurements) -> Islands | None:
    """Two groups of equally many ranks, each pair inside nearer than any across. CPU ranks and ranks that share a GPU
    are no farther apart than chance has it."""
    latency, world = measured.direct.latency_us, measured.world
    if measured.device == "cpu" or measured.sharing > 1 or world < 4 or world % 2:
        return None
    if len(list(cells(latency))) < world * (world - 1):
        return None
    for chosen in combinations(range(1, world), world // 2 - 1):
        first = frozenset((0, *chosen))
        inside = max(us for a, b, us in cells(latency) if (a in first) == (b in first))
        across = min(us for a, b, us in cells(latency) if (a in first) != (b in first))
        if across >= APART * inside:
            return first, frozenset(range(world)) - first
    return None


def fallback_wins(compared: Compared) -> bool:
    """By more than two medians of the same thing differ."""
    return compared.fallback_us < compared.ours_us * (1 - MARGIN)


def steps(compared: tuple[Compared, ...]) -> Tuned:
    """Which sizes go to the fallback, as a table for `plan.choose`: between two sizes the nearer one's winner serves,
    and beyond the last its own."""
    if not any(map(fallback_wins, compared)):
        return ()
    made = []
    for dtype_bytes in (2, 4):
        for each, after in zip(compared, (*compared[1:], None), strict=True):
            up_to = 1 << 40 if after is None else isqrt(each.nbytes * after.nbytes)
            made.append(Step(dtype_bytes, up_to, fallback=fallback_wins(each)))
    return tuple(made)


def _too_slow(traffic: Traffic, device: str) -> tuple[str, ...]:
    limit = SLOW_US[device]
    return tuple(
        f"rank {a} and rank {b}: {us:,.0f} us one way; {limit:,.0f} is the limit ({causes.of(causes.SLOW, device)})"
        for a, b, us in cells(traffic.latency_us)
        if a < b and us > limit
    )


def _collapsed(measured: Measurements) -> bool:
    """Reads that are as slow as stores tell of a link that all ranks share: there pulling would not help."""
    direct = measured.direct
    alone = [rate for _, _, rate in cells(direct.push_gbps)]
    push, pull = direct.push_together_gbps, direct.pull_together_gbps
    if measured.world < 3 or not alone or None in push or None in pull or not push or not pull:
        return False
    stores, loads = min(rate or 0.0 for rate in push), min(rate or 0.0 for rate in pull)
    return stores * measured.sharing < COLLAPSED * median(alone) and loads > READS_KEEP * stores


def _pull_is_wrong(traffic: Traffic) -> bool:
    return any(found != OK for _, _, found in cells(traffic.pulled))


def _praise(traffic: Traffic) -> str:
    pairs = len(list(cells(traffic.arrived)))
    latency = [us for _, _, us in cells(traffic.latency_us)]
    together = [rate for rate in traffic.push_together_gbps if rate is not None]
    told = f"{pairs} directed pairs carry bytes unchanged"
    if latency:
        told += f", at most {max(latency):.3g} us one way"
    if together:
        told += f", {min(together):.3g} GB/s a rank while all store"
    return told


def _told_islands(verdict: Verdict) -> str:
    if verdict.islands is None:
        return "no islands seen"
    return "islands " + " | ".join(",".join(map(str, sorted(group))) for group in verdict.islands)


def _told_comparison(verdict: Verdict) -> str:
    if not verdict.compared:
        return "not compared with a fallback"
    wins = [f"{each.nbytes:,}" for each in verdict.compared if fallback_wins(each)]
    sizes = ", ".join(f"{each.nbytes:,}" for each in verdict.compared)
    return (
        f"the fallback is faster at {', '.join(wins)} of {sizes} bytes"
        if wins
        else f"no slower than the fallback at {sizes} bytes"
    )


def _others(rank: int, world: int) -> str:
    return ", ".join(str(other) for other in range(world) if other != rank)
