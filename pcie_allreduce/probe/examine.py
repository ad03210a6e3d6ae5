"""A whole probe of a group, over channels of its own that are gone afterwards; and the short look at what was kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pcie_allreduce.errors import SetupError
from pcie_allreduce.probe import measuring
from pcie_allreduce.probe.decision import SLOW_US
from pcie_allreduce.probe.experiments import Experiments
from pcie_allreduce.probe.measurements import Matrix, Measurements, Traffic, cells

if TYPE_CHECKING:
    from pcie_allreduce.transport import Transport

DEADLINE = 2.0  # seconds of an experiment that gets no answer
REPEATS = {"cuda": 32, "cpu": 8}  # times 256 KiB to or from a peer: 8 MiB over PCIe 5 take 0.2 ms, collapsed 3 ms
PATIENCE = 5.0  # seconds for the peers to let go of a channel


class Site(NamedTuple):
    """What is known without measuring; see `Measurements`."""

    device: str
    transport: str
    sharing: float


def examine(meeting: measuring.Meeting, site: Site, connect: Callable[[bool], Transport]) -> Measurements:
    """Collective. `connect(staged)` makes a channel of scratch memory, on all ranks or on none (SetupError)."""
    direct, host = (_traffic(meeting, site, partial(connect, staged)) for staged in (False, True))
    return Measurements(site.device, site.transport, meeting.world_size, site.sharing, direct, host)


def why_stale(meeting: measuring.Meeting, transport: Transport, measured: Measurements) -> str | None:
    """Collective, over a channel without calls yet. Why what was measured once does not hold any more."""
    traffic = measured.host if transport.name == "host" else measured.direct
    assert traffic is not None  # or this transport would not have been chosen
    experiments = Experiments(transport, meeting.rank, meeting.world_size, DEADLINE)
    return differs(traffic.latency_us, measuring.latencies(meeting, experiments), measured.device)


def differs(before: Matrix[float], now: Matrix[float], device: str) -> str | None:
    """The short look has a coarse clock; what it is to find is a way that is another altogether: one that has become
    slower, or one that something had slowed down when it was measured."""
    known = {(a, b): us for a, b, us in cells(now)}
    for a, b, us in cells(before):
        if (a, b) not in known:
            return f"rank {a} and rank {b} did not answer each other"
        less, more = sorted((us, known[a, b]))
        if more > (SLOW_US["cpu"] if device == "cpu" else 2 * less + 3):
            return f"rank {a} and rank {b}: {known[a, b]:.1f} us one way, where {us:.1f} were measured"
    return None


def _traffic(meeting: measuring.Meeting, site: Site, connect: Callable[[], Transport]) -> Traffic:
    try:
        transport = connect()
    except SetupError as error:  # with the same reason on all ranks
        return Traffic(problem=str(error))
    try:
        experiments = Experiments(transport, meeting.rank, meeting.world_size, DEADLINE)
        return measuring.measure(meeting, experiments, REPEATS[site.device])
    finally:
        transport.close(PATIENCE)
