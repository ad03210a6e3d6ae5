"""The GPUs of a group and what lies between them: one frozen `Snapshot` that a user can send, and decisions on it.

The driver is asked in one place and may not answer: a fact that is not known is None, and no decision is made on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

Islands = tuple[frozenset[int], frozenset[int]]


class Link(IntEnum):
    """The farthest thing on the way between two GPUs, nearest first; NVML's vocabulary."""

    SAME_GPU = 0
    NVLINK = 1
    SINGLE_SWITCH = 2
    MULTIPLE_SWITCHES = 3
    HOST_BRIDGE = 4
    NODE = 5
    SYSTEM = 6

    @property
    def told(self) -> str:
        return _TOLD[self]


_TOLD = {
    Link.SAME_GPU: "the same GPU",
    Link.NVLINK: "NVLink",
    Link.SINGLE_SWITCH: "one PCIe switch (PIX)",
    Link.MULTIPLE_SWITCHES: "several PCIe switches (PXB)",
    Link.HOST_BRIDGE: "a host bridge of the CPU (PHB)",
    Link.NODE: "several host bridges of a NUMA node (NODE)",
    Link.SYSTEM: "the link between NUMA nodes (SYS)",
}


@dataclass(frozen=True)
class Gpu:
    """One rank's GPU. `sm` is 120 for compute capability 12.0; PCIe as it is now and at best (idle links slow down)."""

    uuid: str
    bus_id: str | None = None
    numa_node: int | None = None
    name: str | None = None
    sm: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None
    bar1_bytes: int | None = None
    mig: bool | None = None


@dataclass(frozen=True)
class Snapshot:
    """GPUs by rank. links[a][b] and p2p[a][b] belong to ranks a and b; None where the driver did not tell.

    `p2p` is the driver's word on writing from a to b: "ok", or why not. `problem`: why nothing is known, if so.
    """

    gpus: tuple[Gpu, ...]
    links: tuple[tuple[Link | None, ...], ...]
    p2p: tuple[tuple[str | None, ...], ...]
    driver: str | None = None
    problem: str | None = None

    def __post_init__(self) -> None:
        for name, matrix in (("links", self.links), ("p2p", self.p2p)):
            if len(matrix) != len(self.gpus) or any(len(row) != len(self.gpus) for row in matrix):
                raise ValueError(f"{name} is not a matrix of {len(self.gpus)} x {len(self.gpus)}, one row a GPU")

    @classmethod
    def unknown(cls, uuids: tuple[str, ...], problem: str) -> Snapshot:
        """Of GPUs about which nobody answers, or of ranks without GPUs."""
        nothing = ((None,) * len(uuids),) * len(uuids)
        return cls(tuple(Gpu(uuid) for uuid in uuids), nothing, nothing, problem=problem)

    def farthest(self) -> Link | None:
        """The farthest link between any two ranks; None where one is not known."""
        between = [self.links[a][b] for a in range(len(self.gpus)) for b in range(a)]
        known = [link for link in between if link is not None]
        return max(known) if known and len(known) == len(between) else None

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold; `from_dict` makes the same snapshot of it."""
        links = [[None if link is None else link.name.lower() for link in row] for row in self.links]
        return {**asdict(self), "gpus": [asdict(gpu) for gpu in self.gpus], "links": links}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Snapshot:
        """ValueError where data is no snapshot."""
        try:
            return cls(
                gpus=tuple(Gpu(**gpu) for gpu in data["gpus"]),
                links=tuple(tuple(None if x is None else Link[x.upper()] for x in row) for row in data["links"]),
                p2p=tuple(tuple(row) for row in data["p2p"]),
                driver=data.get("driver"),
                problem=data.get("problem"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a snapshot of GPUs: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class IslandDecision:
    """Two islands of equally many ranks, rank 0's first, or None; and why."""

    islands: Islands | None
    reason: str


def decide_islands(snapshot: Snapshot, override: str | None = None) -> IslandDecision:
    """Whether the ranks form two groups that are nearer inside than across; `override` as in PCIE_ALLREDUCE_ISLANDS."""
    world = len(snapshot.gpus)
    if override:
        return IslandDecision(parse_islands(override, world), f"PCIE_ALLREDUCE_ISLANDS says {override!r}")
    if world < 4 or world % 2:
        return IslandDecision(None, f"{world} ranks do not make two equal groups of at least 2")
    for a in range(world):
        for b in range(world):
            if a != b and snapshot.links[a][b] is None:
                why = f" ({snapshot.problem})" if snapshot.problem else ""
                return IslandDecision(None, f"the link between ranks {a} and {b} is not known{why}")
    return _search(snapshot, world)


def parse_islands(text: str, world: int) -> Islands | None:
    """ "0-3|4-7" or "0,2,4,6|1,3,5,7": every rank of the world once, in two equal groups; "none": no islands.

    ValueError names the text, what is wrong with it and the limit.
    """
    if text.strip().lower() == "none":
        return None
    groups = [_ranks(part, text) for part in text.split("|")]
    told = f"PCIE_ALLREDUCE_ISLANDS={text!r}"
    if len(groups) != 2:
        raise ValueError(f"{told} has {len(groups)} groups; two are needed, as in '0-3|4-7'")
    named = sorted(groups[0] + groups[1])
    if named != list(range(world)):
        raise ValueError(f"{told} names ranks {named}; each of the ranks 0 to {world - 1} must be named once")
    if len(groups[0]) != len(groups[1]) or world < 4:
        raise ValueError(
            f"{told} has {len(groups[0])} and {len(groups[1])} ranks; equally many, at least 2, are needed"
        )
    first, second = sorted(groups)
    return frozenset(first), frozenset(second)


def _ranks(part: str, text: str) -> list[int]:
    ranks: list[int] = []
    for word in part.split(","):
        low, dash, high = word.partition("-")
        if not low.strip().isdecimal() or (dash and not high.strip().isdecimal()):
            raise ValueError(
                f"PCIE_ALLREDUCE_ISLANDS={text!r}: {word.strip()!r} is neither a rank nor a range like '0-3'"
            )
        ranks += range(int(low), int(high or low) + 1)
    return sorted(ranks)


def _search(snapshot: Snapshot, world: int) -> IslandDecision:
    """From near to far: what is joined at one level stays joined at the next, so the groups only grow."""
    nearer, known = "", world
    for level in list(Link)[Link.NVLINK :]:  # two ranks on one GPU are no farther apart than two with NVLink
        groups = _groups(snapshot, world, level)
        if len(groups) == 1:
            return IslandDecision(None, f"all {world} ranks reach each other over {level.told} or nearer{nearer}")
        sizes = " + ".join(str(len(group)) for group in groups)
        equal = len(groups) == 2 and len(groups[0]) == len(groups[1])
        if equal and _close_knit(snapshot, groups, level):
            beyond = min(link for a in groups[0] for b in groups[1] if (link := snapshot.links[a][b]) is not None)
            reason = f"{sizes} ranks, inside over {level.told} or nearer, across over {beyond.told} or farther"
            return IslandDecision((frozenset(groups[0]), frozenset(groups[1])), reason)
        if len(groups) < known:
            known = len(groups)
            fault = "some only through a third" if equal else "not two equal groups"
            nearer = f"; over {level.told} they are joined as {sizes}, {fault}"
    raise AssertionError("at the level of the whole system every rank reaches every other")


def _groups(snapshot: Snapshot, world: int, level: Link) -> list[list[int]]:
    """Connected components over links no farther than level, each sorted, rank 0's first."""
    groups: list[list[int]] = []
    for rank in range(world):
        near = [group for group in groups if any(_within(snapshot, rank, other, level) for other in group)]
        groups = [group for group in groups if group not in near] + [sorted(sum(near, [rank]))]
    return sorted(groups)


def _close_knit(snapshot: Snapshot, groups: list[list[int]], level: Link) -> bool:
    """NVLink is no tree: ranks may be joined only through a third."""
    return all(a == b or _within(snapshot, a, b, level) for group in groups for a in group for b in group)


def _within(snapshot: Snapshot, a: int, b: int, level: Link) -> bool:
    link = snapshot.links[a][b]
    return link is not None and link <= level
