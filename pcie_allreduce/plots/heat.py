"""Figures between every two ranks as maps: from the row's rank to the column's."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pcie_allreduce.plots.canvas import GREY, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Map:
    """`values[a][b]` from rank a to rank b, None where nothing was measured. `less`: little is good."""

    title: str
    unit: str
    values: Sequence[Sequence[float | None]]
    less: bool = True


WAYS = (("direct", "peers' memory"), ("host", "host's memory"))
FIGURES = (
    ("latency_us", "one way through the {}", "us", True),
    ("push_gbps", "stores to the {}, alone", "GB/s", False),
    ("pull_gbps", "loads from the {}, alone", "GB/s", False),
)


def probe_maps(measured: Mapping[str, Any]) -> list[list[Map]]:
    """Of `pcie-allreduce probe --json`: a line of maps for each way that was measured. Pure."""
    lines = []
    for way, where in WAYS:
        traffic = measured[way] or {}
        line = [
            Map(title.format(where), unit, traffic[name], less)
            for name, title, unit, less in FIGURES
            if traffic.get(name)
        ]
        lines += [line] if line else []
    return lines


def draw_probe(document: Mapping[str, Any], path: str) -> bool:
    """False, and no file, where nothing could be measured."""
    lines = probe_maps(document["verdict"]["measured"] or dict.fromkeys(dict(WAYS)))
    if lines:
        remarks = textwrap.wrap(document["verdict"]["line"], 150)
        draw_heat(lines, path, document["environment"]["label"], remarks)
    return bool(lines)


def draw_heat(lines: Sequence[Sequence[Map]], path: str, title: str, remarks: Sequence[str] = ()) -> None:
    ranks = max(len(each.values) for line in lines for each in line)
    side = max(3.2, 0.5 * ranks + 1.4)
    columns = max(map(len, lines))
    figure = new_figure((side + 0.6) * columns, side * len(lines), title, remarks)
    axes = figure.subplots(len(lines), columns, squeeze=False)
    for line, row in zip(lines, axes, strict=True):
        for each, axis in zip(line, row, strict=False):
            _draw(figure, axis, each)
        for axis in row[len(line) :]:
            axis.set_axis_off()
    save(figure, path)


def _draw(figure: Figure, axis: Axes, each: Map) -> None:
    known = [value for row in each.values for value in row if value is not None]
    high = max(known, default=0.0) or 1.0  # from 0 on: small differences are to look small
    shown = [[float("nan") if value is None else value for value in row] for row in each.values]
    image = axis.imshow(shown, cmap="Blues_r" if each.less else "Blues", vmin=0.0, vmax=1.25 * high)
    for a, row in enumerate(each.values):
        for b, value in enumerate(row):
            if value is not None:
                share = value / (1.25 * high)
                white = share < 0.4 if each.less else share > 0.6
                text = f"{value:.2f}" if value < 10 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"
                axis.text(b, a, text, ha="center", va="center", fontsize=8, color="white" if white else "black")
    ranks = range(len(each.values))
    axis.set_xticks(ranks, map(str, ranks))
    axis.set_yticks(ranks, map(str, ranks))
    axis.set_xlabel("to rank")
    axis.set_ylabel("from rank")
    axis.tick_params(length=0, colors=GREY)
    axis.spines[:].set_visible(False)
    axis.set_title(f"{each.title}, {each.unit}", loc="left", fontsize=9)
    figure.colorbar(image, ax=axis, shrink=0.8).outline.set_visible(False)
