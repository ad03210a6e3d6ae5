"""What was measured, gathered over the group, so that all ranks decide on the same figures.

Matrices: [a][b] is about bytes that go from rank a to rank b, whoever moves them. None: not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Matrix = tuple[tuple[T | None, ...], ...]

OK = "ok"


@dataclass(frozen=True)
class Traffic:
    """Of one kind of memory: the peers' own, or the host's.

    Attributes:
        problem: why nothing could be measured.
        arrived: "ok", or what became of known bytes.
        latency_us: half of the time there and back, the same in both directions.
        push_gbps, pull_gbps: 10^9 bytes/s that one rank stores to one other or loads from it, all others being quiet.
        push_together_gbps, pull_together_gbps: of each rank, to or from all others, while all do the same.
        pulled: "ok", or what became of bytes that were loaded.
    """

    problem: str | None = None
    arrived: Matrix[str] = ()
    latency_us: Matrix[float] = ()
    push_gbps: Matrix[float] = ()
    pull_gbps: Matrix[float] = ()
    push_together_gbps: tuple[float | None, ...] = ()
    pull_together_gbps: tuple[float | None, ...] = ()
    pulled: Matrix[str] = ()

    def fits(self, world: int) -> bool:
        """Whether all that was measured is about so many ranks, and of the kind that it should be."""
        return (
            (self.problem is None or isinstance(self.problem, str))
            and all(_square(matrix, world, _is_text) for matrix in (self.arrived, self.pulled))
            and all(_square(rates, world, _is_number) for rates in (self.latency_us, self.push_gbps, self.pull_gbps))
            and all(
                rates == () or _row(rates, world, _is_number)
                for rates in (self.push_together_gbps, self.pull_together_gbps)
            )
            and (self.problem is not None or self._went_far_enough(world * (world - 1)))
        )

    def _went_far_enough(self, pairs: int) -> bool:
        """To bad bytes, which end it, or to the latencies of all pairs."""
        arrived = [found for _, _, found in cells(self.arrived)]
        ended = any(found != OK for found in arrived)
        return len(arrived) == pairs and (ended or len(list(cells(self.latency_us))) == pairs)


@dataclass(frozen=True)
class Compared:
    """Microseconds of a call, on the slowest rank."""

    nbytes: int
    ours_us: float
    fallback_us: float

    def fits(self) -> bool:
        times = (self.ours_us, self.fallback_us)
        return type(self.nbytes) is int and self.nbytes > 0 and all(map(_is_number, times))


@dataclass(frozen=True)
class Measurements:
    """All that the decision sees.

    Attributes:
        device: "cuda" or "cpu".
        transport: of the direct traffic, "peer" or "cpu".
        sharing: ranks that share a GPU, or a core, at most; 1 where each has its own.
        direct: stores into, and loads from, the memory of other ranks.
        host: by way of the host's memory; None where it was not measured.
        fallback: what the fallback was, where it was compared with.
        compared: with the fallback, by rising size; empty where it was not.
    """

    device: str
    transport: str
    world: int
    sharing: float
    direct: Traffic
    host: Traffic | None = None
    fallback: str | None = None
    compared: tuple[Compared, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurements:
        """ValueError where data, of a file, is no such thing."""
        try:
            host = data["host"]
            made = cls(
                **{name: data[name] for name in ("device", "transport", "world", "sharing")},
                direct=_traffic(data["direct"]),
                host=None if host is None else _traffic(host),
                fallback=data["fallback"],
                compared=tuple(Compared(**each) for each in data["compared"]),
            )
        except (AttributeError, KeyError, RecursionError, TypeError) as error:
            raise ValueError(f"these are no measurements: {type(error).__name__}: {error}") from error
        if type(made.world) is not int or not _is_number(made.sharing):
            raise ValueError("these are no measurements: they do not say of how many ranks")
        if (made.device, made.transport) not in (("cuda", "peer"), ("cpu", "cpu")):
            raise ValueError("these are no measurements: they are neither of GPUs nor of CPU ranks")
        if not all(traffic is None or traffic.fits(made.world) for traffic in (made.direct, made.host)):
            raise ValueError(f"these are no measurements of {made.world} ranks")
        if not made._compares():
            raise ValueError("these are no measurements: they do not compare with a fallback")
        return made

    def _compares(self) -> bool:
        """Or has not tried to."""
        if not self.compared:
            return self.fallback is None
        if not isinstance(self.fallback, str) or not all(each.fits() for each in self.compared):
            return False
        sizes = [each.nbytes for each in self.compared]
        return sizes == sorted(set(sizes))


def cells(matrix: Matrix[T]) -> Iterator[tuple[int, int, T]]:
    """(a, b, value) of all pairs that have a value."""
    for a, row in enumerate(matrix):
        for b, value in enumerate(row):
            if a != b and value is not None:
                yield a, b, value


def transposed(matrix: Matrix[T]) -> Matrix[T]:
    return tuple(zip(*matrix, strict=True))


def _traffic(data: Mapping[str, Any]) -> Traffic:
    """JSON has lists only."""
    return Traffic(**{name: _frozen(value) for name, value in data.items()})


def _square(matrix: Any, world: int, kind: Callable[[Any], bool]) -> bool:
    """Or nothing."""
    if matrix == ():
        return True
    return isinstance(matrix, tuple) and len(matrix) == world and all(_row(row, world, kind) for row in matrix)


def _row(row: Any, world: int, kind: Callable[[Any], bool]) -> bool:
    return isinstance(row, tuple) and len(row) == world and all(value is None or kind(value) for value in row)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    """One that a float can hold; not a NaN, and not True."""
    return type(value) in (int, float) and 0 <= value < 1e300


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
