"""Where a picture goes. Asked before a run whether it can be drawn, since nobody waits twice for a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pcie_allreduce.bench.settings import CannotRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")
# Okabe and Ito's, which people who see few colours tell apart; black is kept for what nothing can beat.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31")
BLACK, GREY, PALE = "#000000", "#6E6E6E", "#DDDDDD"


def check_plot(path: str) -> None:
    """CannotRun where no picture can be drawn or written."""
    file = Path(path)
    if file.suffix.lower() not in KINDS:
        raise CannotRun(f"--plot {path}: the name must end in {', '.join(KINDS)}")
    if file.is_dir() or not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise CannotRun(f"--plot {path}: no file can be written there")
    if find_spec("matplotlib") is None:
        raise CannotRun("--plot needs matplotlib, which is not installed: pip install 'pcie-allreduce[plot]'")


def new_figure(width: float, height: float, title: str, remarks: Sequence[str] = ()) -> Figure:
    """Inches. The title says what is shown and how it came about; remarks stand small beneath the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height + 0.22 * len(remarks)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    if remarks:
        figure.supxlabel("\n".join(remarks), x=0.01, ha="left", fontsize=8, color=GREY)
    return figure


def save(figure: Figure, path: str, origin: str = "") -> None:
    """`origin` is written into SVG files, for whoever wants to know what they were drawn from."""
    metadata = {"Date": None, "Description": origin or None} if path.lower().endswith(".svg") else None
    figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)
