"""A verify pass as stacked bars: what its matmuls take, and what its all-reduces add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcie_allreduce.plots.canvas import COLOURS, GREY, PALE, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPUTE = "#B8B8B8"


def draw_passes(document: dict[str, Any], path: str) -> None:
    """Of `pcie-allreduce verify-cycle --json`."""
    passes = [row for row in document["passes"] if row["all_reduces"]]
    counts = list(dict.fromkeys(row["rows"] for row in passes))
    shape = document["shape"]
    remarks = [
        document["environment"]["label"],
        "stand-in matmuls; all-reduces: what a pass takes longer than without communication",
    ]
    title = f"One pass of {shape['layers']} layers, {passes[0]['all_reduces']} all-reduces"
    figure = new_figure(max(6.5, 2.9 * len(counts)), 4.6, title, remarks)
    axes = figure.subplots(1, len(counts), squeeze=False, sharey=True)[0]
    for rows, axis in zip(counts, axes, strict=True):
        _draw(axis, rows, [row for row in passes if row["rows"] == rows])
    axes[0].set_ylabel("milliseconds a pass, slowest rank")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    save(figure, path)


def _draw(axis: Axes, rows: int, passes: Sequence[dict[str, Any]]) -> None:
    names = [row["backend"] for row in passes]
    compute = [min(row["alone_us"], row["us_median"]) / 1e3 for row in passes]
    added = [max(0.0, row["communication_us"]) / 1e3 for row in passes]
    axis.bar(names, compute, width=0.6, color=COMPUTE, label="matmuls, add and norm")
    axis.bar(names, added, width=0.6, bottom=compute, color=COLOURS[1], label="all-reduces")
    for index, row in enumerate(passes):
        text = f"{row['us_median'] / 1e3:.3g} ms\n{100 * row['share']:.0f} %"
        axis.text(index, row["us_median"] / 1e3, text, ha="center", va="bottom", fontsize=8)
    axis.margins(y=0.15)
    axis.set_title(f"{rows} row{'s' if rows > 1 else ''}", loc="left", fontsize=9)
    axis.tick_params(axis="x", labelsize=8, length=0, rotation=20 if len(names) > 2 else 0)
    axis.tick_params(axis="y", colors=GREY)
    axis.grid(axis="y", color=PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
