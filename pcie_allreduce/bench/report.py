"""The table that people read, and the two judgements that the results page makes as well: what is compared with what,
and which rows are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pcie_allreduce.bench.rows import Document, Row

BASELINES = ("nccl", "gloo", "nccl-p2p-off")  # the first that was run
OURS = "pcie_allreduce"
LEGEND = "E exact, I identical bits on all ranks, R correctly rounded, - not"


def baseline_for(row: Row, rows: Iterable[Row]) -> Row | None:
    """The row of the untuned torch.distributed backend for the same work in the same run; where it was not run, that of
    NCCL without P2P."""
    same = {other.backend: other for other in rows if _work(other) == _work(row)}
    return next((same[name] for name in BASELINES if name in same), None)


def ratio(row: Row, rows: Sequence[Row]) -> float | None:
    """How many times faster than the baseline; None for the baseline itself, for a floor, and without a baseline."""
    baseline = baseline_for(row, rows)
    if baseline is None or baseline is row or row.exact is None:
        return None
    return baseline.us_median / row.us_median


def complaints(rows: Iterable[Row]) -> list[str]:
    """One sentence for each row whose sums are wrong. A baseline may round as it likes; ours not."""
    sentences = []
    for row in rows:
        asked = {"exact": row.exact}
        if row.backend == OURS:
            asked |= {"identical on all ranks": row.identical, "correctly rounded": row.correctly_rounded}
        broken = [what for what, holds in asked.items() if holds is False]
        if broken:
            sentences.append(
                f"{row.backend} ({row.algorithm}, {row.mode}, {row.bytes} bytes of {row.dtype}, {row.world} ranks): "
                f"sums are not {', not '.join(broken)}"
            )
    return sentences


def show(document: Document, console: Console) -> None:
    """One table per mode, then what was not run."""
    lines = [f"{document.environment['label']}; {machine(document)}"]
    if document.environment["input"]:
        lines.append(f"input: {document.environment['input']['file']} in place of noise")
    if document.environment.get("tuned"):
        lines.append(
            "auto follows a table that `pcie-allreduce tune` has left here (PCIE_ALLREDUCE_TUNED=0: it does not)"
        )
    console.print(*lines, sep="\n", highlight=False, markup=False)
    for mode in dict.fromkeys(row.mode for row in document.rows):
        console.print(_table(mode, [row for row in document.rows if row.mode == mode]))
    if document.rows:
        console.print(f"sums: {LEGEND}", highlight=False)
    for reason, names in _not_run(document).items():
        console.print(f"not run: {', '.join(names)}: {reason}", highlight=False, markup=False)


def verdict(row: Row) -> str:
    """The letters of what holds; empty for a floor."""
    answers = zip("EIR", (row.exact, row.identical, row.correctly_rounded), strict=True)
    return " ".join(letter if answer else "-" for letter, answer in answers if answer is not None)


def microseconds(us: float) -> str:
    """With at most two decimals, and fewer for large ones: what a median of replays is worth."""
    return f"{us:.{2 if us < 100 else 1 if us < 1000 else 0}f}"


def machine(document: Document) -> str:
    """GPUs, CPU, torch and NCCL in one line."""
    environment = document.environment
    names = [gpu["name"] for gpu in environment["gpus"]]
    parts = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    parts.append(f"{environment['cpu']['model']}, {environment['cpu']['cores']} cores")
    parts.append(f"torch {environment['torch']}")
    if environment["nccl"]["version"]:
        parts.append(f"NCCL {environment['nccl']['version']}")
    return ", ".join(parts)


def _table(mode: str, rows: list[Row]) -> Table:
    first = rows[0]
    run = {row.backend for row in rows}
    baseline = next((name for name in BASELINES if name in run), None)
    title = f"{first.dtype}, {first.world} ranks, {mode}: microseconds per call, slowest rank"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("bytes", "backend", "median", "lowest-highest", f"x {baseline}" if baseline else "ratio", "sums"):
        table.add_column(heading, justify="left" if heading in ("backend", "sums") else "right", no_wrap=True)
    for nbytes in dict.fromkeys(row.bytes for row in rows):
        for row in (row for row in rows if row.bytes == nbytes):
            table.add_row(*_cells(row, rows))
    return table


def label(row: Row) -> str:
    """Backend and algorithm, as tables and pictures name them."""
    return " ".join(word for word in (row.backend, "fused" * row.fused, row.algorithm) if word not in ("", "none"))


def _cells(row: Row, rows: list[Row]) -> list[str]:
    times = ratio(row, rows)
    return [
        f"{row.bytes:,}",
        label(row),
        microseconds(row.us_median),
        f"{microseconds(row.us_min)}-{microseconds(row.us_max)}",
        f"{times:.2f}" if times else "",
        verdict(row),
    ]


def _not_run(document: Document) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in document.environment["not_run"].items():
        reasons.setdefault(reason, []).append(name)
    return reasons


def _work(row: Row) -> tuple[str, int, int, str, int, int | None]:
    return row.mode, row.world, row.gpus, row.dtype, row.bytes, row.hidden
