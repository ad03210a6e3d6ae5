"""A verdict in full, as text for a person."""

from __future__ import annotations

from collections.abc import Iterator

from pcie_allreduce.probe.decision import Verdict
from pcie_allreduce.probe.measurements import OK, Matrix, Measurements, Traffic, cells


def text(verdict: Verdict) -> str:
    """What was measured, what is wrong, and last the verdict."""
    measured = verdict.measured
    lines = list(_measured(measured)) if measured is not None else []
    if verdict.findings:
        lines += ["", "findings:", *(f"  {finding}" for finding in verdict.findings)]
    return "\n".join([*lines, "", verdict.line])


def _measured(measured: Measurements) -> Iterator[str]:
    yield from _traffic("through the peers' memory", measured.direct)
    if measured.host is not None:
        yield ""
        yield from _traffic("through the host's memory, as ranks without P2P", measured.host)
    if measured.compared:
        yield ""
        yield f"a call, slowest rank, us: ours and {measured.fallback}"
        for each in measured.compared:
            yield f"  {each.nbytes:>9,} bytes {each.ours_us:10.2f} {each.fallback_us:10.2f}"


def _traffic(title: str, traffic: Traffic) -> Iterator[str]:
    yield f"{title}:"
    if traffic.problem is not None:
        yield f"  {traffic.problem}"
        return
    bad = [f"  rank {a} to rank {b}: bytes {found}" for a, b, found in cells(traffic.arrived) if found != OK]
    yield from bad or [f"  bytes arrived unchanged over all {len(list(cells(traffic.arrived)))} directed pairs"]
    yield from _matrix("one way, us (half of there and back)", traffic.latency_us)
    yield from _matrix("stores alone, GB/s (from the row's rank to the column's)", traffic.push_gbps)
    yield from _matrix("loads alone, GB/s (from the row's rank by the column's)", traffic.pull_gbps)
    yield from _vector("stores while all store, GB/s of each rank", traffic.push_together_gbps)
    yield from _vector("loads while all load, GB/s of each rank", traffic.pull_together_gbps)
    yield from (f"  rank {a} to rank {b}: bytes {found}" for a, b, found in cells(traffic.pulled) if found != OK)


def _matrix(title: str, matrix: Matrix[float]) -> Iterator[str]:
    if matrix:
        yield f"  {title}"
        yield "       " + "".join(f"{b:>9}" for b in range(len(matrix)))
        for a, row in enumerate(matrix):
            yield f"    {a:>3}" + "".join(f"{'-' if value is None else _short(value):>9}" for value in row)


def _vector(title: str, values: tuple[float | None, ...]) -> Iterator[str]:
    if values:
        yield f"  {title}"
        yield "       " + "".join(f"{'-' if value is None else _short(value):>9}" for value in values)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
