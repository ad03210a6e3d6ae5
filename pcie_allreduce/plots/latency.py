"""Latency over size, on logarithmic axes: one panel a mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcie_allreduce.bench.report import machine
from pcie_allreduce.bench.rows import Document
from pcie_allreduce.plots.canvas import BLACK, COLOURS, GREY, PALE, new_figure, save
from pcie_allreduce.plots.curves import FLOOR, MODELLED, Curve, Panel, bench_panels, model_panel, tune_panel
from pcie_allreduce.topology import Snapshot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^DvPX"
OF_TUNING = "best of ours: the quickest algorithm and launch shape that was tried at each size"
VERIFY = (43008, 57344)  # bytes of a verify pass of 3 and 4 rows


def draw_bench(document: Document, snapshot: Snapshot, path: str, origin: str = "") -> None:
    """Of `pcie-allreduce bench`; `snapshot` of the machine that it was measured on, for the prediction."""
    environment = document.environment
    remarks = [machine(document), "thin vertical lines: 3 and 4 rows of 7168 values, bf16"]
    draw_latency(bench_panels(document, snapshot), path, str(environment["label"]), remarks, origin)


def draw_model(document: dict[str, Any], path: str) -> None:
    """Of `pcie-allreduce model --json`."""
    draw_latency([model_panel(document)], path, "modelled, not measured")


def draw_tune(document: dict[str, Any], path: str) -> None:
    """Of `pcie-allreduce tune --json`."""
    draw_latency([tune_panel(document)], path, str(document["environment"]["label"]), [OF_TUNING])


def draw_latency(panels: Sequence[Panel], path: str, title: str, remarks: Sequence[str] = (), origin: str = "") -> None:
    figure = new_figure(7.2 * len(panels), 5.0, title, remarks)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        _draw(axis, panel)
    save(figure, path, origin)


def _draw(axis: Axes, panel: Panel) -> None:
    sizes = sorted({nbytes for curve in panel.curves for nbytes, _ in curve.points})
    others = [curve for curve in panel.curves if curve.kind != FLOOR]
    modelled = sum(curve.kind == MODELLED for curve in others)
    for curve in panel.curves:
        rank = others.index(curve) if curve in others else 0
        colour = BLACK if curve.kind == FLOOR else GREY if curve.kind == MODELLED and modelled == 1 else ""
        _line(axis, curve, colour or COLOURS[rank % len(COLOURS)], rank)
    for nbytes in VERIFY:
        if sizes[0] <= nbytes <= sizes[-1]:
            axis.axvline(nbytes, color=PALE, linewidth=1, zorder=0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [_bytes(size) for size in sizes], rotation=45, ha="right", fontsize=8)
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_yticks(_ticks(panel))
    axis.grid(axis="y", color=PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_xlabel("bytes of a rank")
    axis.set_ylabel("microseconds a call, modelled" if modelled > 1 else "microseconds a call, slowest rank")
    axis.set_title(panel.title, loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)


def _line(axis: Axes, curve: Curve, colour: str, rank: int) -> None:
    """Later lines are thinner, so that those that they cover are seen."""
    x = [nbytes for nbytes, _ in curve.points]
    y = [us for _, us in curve.points]
    style = {FLOOR: "--", MODELLED: ":"}.get(curve.kind, "-")
    marker = "" if curve.kind in (FLOOR, MODELLED) else MARKERS[rank % len(MARKERS)]
    width = max(1.2, 2.8 - 0.4 * rank) if marker else 1.6
    axis.plot(x, y, style, color=colour, marker=marker, markersize=5, linewidth=width, label=curve.label)
    if curve.spread:
        low, high = zip(*curve.spread, strict=True)
        axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def _ticks(panel: Panel) -> list[float]:
    """1, 2, 5, 10, ... around all that is drawn."""
    values = [us for curve in panel.curves for _, us in curve.points]
    steps = [digit * 10.0**power for power in range(-2, 8) for digit in (1, 2, 5)]
    low = max((step for step in steps if step <= min(values)), default=steps[0])
    high = min((step for step in steps if step >= max(values)), default=steps[-1])
    return [step for step in steps if low <= step <= high]


def _bytes(size: int) -> str:
    if size % (1 << 20) == 0:
        return f"{size >> 20} MiB"
    return f"{size / 1024:g} KiB" if size >= 1024 else f"{size} B"
