"""From documents to lines over the size of an all-reduce. Pure: nothing here draws.

What was measured is a solid line, a floor a black dashed one, what was modelled a dotted one; and the legend says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pcie_allreduce import model
from pcie_allreduce.bench.report import OURS, label
from pcie_allreduce.bench.rows import Document, Row
from pcie_allreduce.bench.settings import ITEM_BYTES
from pcie_allreduce.plan import ALGORITHMS, serves
from pcie_allreduce.presets import PRESETS, Preset, preset_for, staged_preset_for
from pcie_allreduce.topology import Snapshot, decide_islands

MEASURED, FLOOR, MODELLED = "measured", "floor", "modelled"


@dataclass(frozen=True)
class Curve:
    """`points`: (bytes, microseconds); `spread`: lowest and highest for each, or nothing."""

    label: str
    points: tuple[tuple[int, float], ...]
    kind: str = MEASURED
    spread: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Panel:
    title: str
    curves: tuple[Curve, ...]


def bench_panels(document: Document, snapshot: Snapshot) -> list[Panel]:
    """One panel a mode. The prediction is drawn where its figures belong: in graphs, and for CPU ranks."""
    panels = []
    for mode in dict.fromkeys(row.mode for row in document.rows):
        rows = [row for row in document.rows if row.mode == mode]
        curves = [_measured(name, rows) for name in dict.fromkeys(map(label, rows))]
        predicted = prediction(rows, document.environment["kind"], snapshot)
        first = rows[0]
        title = f"{first.dtype}, {first.world} ranks, {mode}"
        panels.append(Panel(title, (*curves, *([predicted] if predicted else []))))
    return panels


def _measured(name: str, rows: Sequence[Row]) -> Curve:
    mine = sorted((row for row in rows if label(row) == name), key=lambda row: row.bytes)
    kind = FLOOR if name == "floor" else MEASURED
    points = tuple((row.bytes, row.us_median) for row in mine)
    return Curve(name, points, kind, tuple((row.us_min, row.us_max) for row in mine))


def prediction(rows: Sequence[Row], kind: str, snapshot: Snapshot) -> Curve | None:
    """Of the algorithms that served; None where nothing of ours was measured or no figures are of that."""
    ours = sorted(
        (row for row in rows if row.backend == OURS and row.algorithm in ALGORITHMS and not row.fused),
        key=lambda row: row.bytes,
    )
    if not ours or (ours[0].mode != "graph" and kind != "cpu"):
        return None
    preset, islands = _preset(ours[0], kind, snapshot)
    if preset is None:
        return None
    best: dict[int, float] = {}
    for row in ours:
        about = (row.world, row.bytes, ITEM_BYTES[row.dtype], islands, preset.figures)
        us = model.predict(row.algorithm, *about)
        if us is not None:
            best[row.bytes] = min(us, best.get(row.bytes, us))
    return Curve(f"modelled, figures of {preset.name}", tuple(best.items()), MODELLED) if best else None


def _preset(row: Row, kind: str, snapshot: Snapshot) -> tuple[Preset | None, bool]:
    if row.transport == "host":
        return (staged_preset_for(snapshot) if snapshot.gpus or kind == "cpu" else None), False
    islands = row.algorithm == "island"
    if kind in ("cpu", "emulated"):  # kinds of runs and names of figures
        return PRESETS[kind], islands
    if len(snapshot.gpus) < row.world:
        return None, False
    halves = decide_islands(snapshot).islands is not None and serves("island", row.world, True)
    return preset_for(snapshot, halves), halves


def model_panel(document: dict[str, Any]) -> Panel:
    """Of `pcie-allreduce model`: all of it is modelled but NCCL's points, which are published or measured."""
    curves = []
    for name in model.NAMES:
        points = tuple((row["bytes"], row[name]) for row in document["rows"] if row[name] is not None)
        kind = FLOOR if name == "floor" else MEASURED if name == "nccl" else MODELLED
        if points:
            curves.append(Curve("nccl, as known" if name == "nccl" else name, points, kind))
    overlay = document["overlay"]
    for algorithm in dict.fromkeys(row["algorithm"] for row in overlay["rows"]) if overlay else ():
        rows = sorted((row for row in overlay["rows"] if row["algorithm"] == algorithm), key=lambda row: row["bytes"])
        points = tuple((row["bytes"], row["measured_us"]) for row in rows)
        curves.append(Curve(f"{algorithm}, measured", points, MEASURED))
    return Panel(f"{document['dtype']}, {document['world']} ranks: {document['title']}", tuple(curves))


def tune_panel(document: dict[str, Any]) -> Panel:
    """Untuned, best and chosen, and what the fallback takes."""
    sizes = document["sizes"]

    def of(label: str, pick: Any) -> Curve:
        found = [(size["bytes"], pick(size)) for size in sizes]
        return Curve(label, tuple((nbytes, us) for nbytes, us in found if us is not None))

    def least(candidates: Sequence[dict[str, Any]]) -> float | None:
        return min((each["us_median"] for each in candidates), default=None)

    curves = (
        of("untuned plan", lambda size: least([each for each in size["candidates"] if each["untuned"]])),
        of("best of ours", lambda size: least([each for each in size["candidates"] if each["algorithm"] != "none"])),
        of("fallback", lambda size: least([each for each in size["candidates"] if each["algorithm"] == "none"])),
    )
    asked = document["environment"]["settings"]
    return Panel(f"{asked['dtype']}, {asked['ranks']} ranks", tuple(curve for curve in curves if curve.points))
