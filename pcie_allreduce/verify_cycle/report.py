"""One row a joint and row count, the table of them, and which of them are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pcie_allreduce.bench.report import BASELINES, OURS
from pcie_allreduce.verify_cycle.speculation import acceptance_for, tokens_per_second

FARTHEST = (
    0.1  # two right passes ended 0.02 away: roundings of 122 sums. It finds sums that are lost, not misrounded ones
)


@dataclass(frozen=True)
class PassRow:
    """Times are microseconds of one pass, slowest rank; a repeat is the median over its replays, and `us_median`,
    `us_min`, `us_max` are the median, lowest and highest repeat. `alone_us` is the same pass, in the same processes,
    without communication. `identical`: the same bits on all ranks. `distance`: of the last norm from another
    all-reduce's, relative, infinite for NaN. Both are null without communication."""

    backend: str
    algorithm: str
    world: int
    gpus: int
    rows: int
    bytes: int
    all_reduces: int
    us_median: float
    us_min: float
    us_max: float
    alone_us: float
    replays: int
    repeats: int
    identical: bool | None
    distance: float | None

    @property
    def communication_us(self) -> float:
        """What the pass takes longer than without communication."""
        return self.us_median - self.alone_us

    @property
    def share(self) -> float:
        return self.communication_us / self.us_median


def complaints(rows: Iterable[PassRow]) -> list[str]:
    found = []
    for row in rows:
        what = f"{row.backend}, {row.rows} row(s)"
        if row.identical is False and row.backend.startswith(OURS):
            found.append(f"{what}: ranks end with different bits")
        if row.distance is not None and not row.distance <= FARTHEST:
            found.append(
                f"{what}: the pass ends {row.distance:g} away from another all-reduce's; {FARTHEST:g} is allowed"
            )
    return found


@dataclass(frozen=True)
class Speculation:
    """`acceptance`: tokens that a pass yields. `share`: the verify pass's part of a cycle."""

    acceptance: float
    share: float


def told(row: PassRow, rows: Sequence[PassRow], speculation: Speculation) -> dict[str, Any]:
    """A row and what follows from it. One row is decoding without speculation: a pass yields one token."""
    acceptance = min(speculation.acceptance, row.rows)
    alone = row.rows == 1
    tokens = 1e6 / row.us_median if alone else tokens_per_second(acceptance, row.us_median, speculation.share)
    plain = next((other for other in rows if other.rows == 1 and other.backend == row.backend), None)
    pays = None if alone or plain is None else acceptance_for(1e6 / plain.us_median, row.us_median, speculation.share)
    calls = row.all_reduces or None
    return {
        **asdict(row),
        "communication_us": round(row.communication_us, 1) if calls else None,
        "share": round(row.share, 4) if calls else None,
        "us_an_all_reduce": round(row.communication_us / calls, 2) if calls else None,
        "acceptance": 1.0 if alone else acceptance,
        "tokens_per_second": round(tokens, 1),
        "pays_from": None if pays is None else round(pays, 2),
    }


def show(document: dict[str, Any], console: Console) -> None:
    console.print(document["environment"]["label"], highlight=False, markup=False)
    shape = document["shape"]
    console.print(
        f"{shape['layers']} layers of hidden size {shape['hidden']}, shards of {shape['tp']} ranks; stand-in matmuls",
        highlight=False,
    )
    for rows in dict.fromkeys(row["rows"] for row in document["passes"]):
        console.print(_table(rows, [row for row in document["passes"] if row["rows"] == rows]))
    console.print(_legend(document["speculation"]), highlight=False, soft_wrap=True)
    for name, reason in document["environment"]["not_run"].items():
        if reason not in ("not asked for", "serves CPU ranks only", "needs GPUs"):
            console.print(f"not run: {name}: {reason}", highlight=False, markup=False)


def _table(rows: int, passes: list[dict[str, Any]]) -> Table:
    kind = "decoding without speculation" if rows == 1 else "a verify pass"
    title = f"{rows} row(s), {passes[0]['bytes']:,} bytes an all-reduce: {kind}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in (
        "all-reduce",
        "ms",
        "lowest-highest",
        "all-reduces",
        "share",
        "us each",
        "x",
        "tokens/s",
        "pays from",
    ):
        table.add_column(heading, justify="left" if heading == "all-reduce" else "right", no_wrap=True)
    baseline = next((row for name in BASELINES for row in passes if row["backend"] == name), None)
    for row in passes:
        table.add_row(*_cells(row, baseline))
    return table


def _cells(row: dict[str, Any], baseline: dict[str, Any] | None) -> list[str]:
    compared = baseline is not None and baseline is not row and row["all_reduces"]
    return [
        row["backend"] + (f" {row['algorithm']}" if row["algorithm"] != "none" else ""),
        f"{row['us_median'] / 1e3:.2f}",
        f"{row['us_min'] / 1e3:.2f}-{row['us_max'] / 1e3:.2f}",
        "" if row["share"] is None else f"{row['communication_us'] / 1e3:.2f}",
        "" if row["share"] is None else f"{100 * row['share']:.0f} %",
        "" if row["us_an_all_reduce"] is None else f"{row['us_an_all_reduce']:.2f}",
        f"{baseline['us_median'] / row['us_median']:.2f}" if compared and baseline else "",
        f"{row['tokens_per_second']:.0f}" if row["all_reduces"] else "",
        "" if row["pays_from"] is None or not row["all_reduces"] else f"{row['pays_from']:.2f}",
    ]


def _legend(speculation: dict[str, float]) -> str:
    return (
        "all-reduces: what a pass takes longer than without communication, in ms; us each: in us, for each of them\n"
        "tokens/s = acceptance x verify share / pass, here "
        f"{speculation['acceptance']:g} x {speculation['share']:g} / pass (given, not measured); 1 / pass for one row\n"
        "pays from: the acceptance at which speculation is as fast as one row a pass with the same all-reduce"
    )
