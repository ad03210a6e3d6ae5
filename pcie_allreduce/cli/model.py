"""`pcie-allreduce model`: the cost model as a table, for machines that are not at hand. All of it is modelled."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pcie_allreduce import model, nvml
from pcie_allreduce.bench.rows import Document, Row
from pcie_allreduce.bench.settings import ITEM_BYTES, MAX_WORLD, CannotRun
from pcie_allreduce.memory.buffers import DEFAULT_BYTES
from pcie_allreduce.plan import ALGORITHMS, FIGURES, USEFUL_BLOCKS, LinkFigures, area_packs_for, choose, serves
from pcie_allreduce.plots.canvas import check_plot
from pcie_allreduce.plots.latency import draw_model
from pcie_allreduce.presets import PRESETS, Figure, Preset, preset_for
from pcie_allreduce.topology import decide_islands

EPILOG = """
Nothing is measured: microseconds come from the figures that are printed with the table, each with its origin.
--topology here takes this machine's GPUs and their links as the driver tells them. --overlay lays our rows of a
`bench --json` file beside the predictions; --published compares with what others measured on eight PCIe GPUs.
"""


class CannotModel(Exception):
    """What was asked has no answer; the message says why."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "model", description="Predicts microseconds a call from link figures.", epilog=EPILOG
    )
    add = parser.add_argument
    add(
        "--topology",
        choices=(*PRESETS, "here"),
        default="pcie5-switch",
        metavar="NAME",
        help=", ".join((*PRESETS, "here")),
    )
    add("--world", type=int, metavar="N", help="ranks, 2 to 8; default: 8, or as many as GPUs with --topology here")
    add("--dtype", choices=tuple(ITEM_BYTES), default="bf16")
    add(
        "--sizes",
        type=_sizes,
        default=model.SIZES,
        metavar="BYTES,...",
        help="payloads of one rank; default: 1 KB to 2 MB",
    )
    add(
        "--figures",
        type=_figures,
        default={},
        metavar="NAME=VALUE,...",
        help=f"replace {', '.join(FIGURES)}",
    )
    add("--published", action="store_true", help="how far the model is from what others published")
    add("--json", metavar="FILE", help="write figures, predictions and crossovers to FILE")
    add("--plot", metavar="FILE", help="draw the predictions to FILE (.png, .svg, .pdf)")
    add("--overlay", metavar="FILE", help="a result of `bench --json`")


def run(args: argparse.Namespace) -> int:
    try:
        if args.plot:
            check_plot(args.plot)
        document = predictions(args)
        if args.json:
            Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
        if args.plot:
            draw_model(document, args.plot)
    except (CannotModel, CannotRun, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    show(document, Console(width=120, highlight=False))
    return 0


def predictions(args: argparse.Namespace) -> dict[str, Any]:
    """What `--json` writes and the tables show."""
    preset, world = _machine(args.topology, args.world)
    preset = preset.with_figures(**args.figures)
    islands = preset.islands and serves("island", world, True)
    about = (world, ITEM_BYTES[args.dtype], islands, preset.figures)
    return {
        "kind": "modelled",
        "topology": preset.name,
        "title": preset.title,
        "world": world,
        "dtype": args.dtype,
        "islands": islands,
        "figures": {name: figure._asdict() for name, figure in preset.known.items()},
        "rows": [_row(preset, size, *about) for size in args.sizes],
        "crossovers": [crossover._asdict() for crossover in model.crossovers(*about)],
        "published": [_distance(distance) for distance in model.distances()] if args.published else [],
        "overlay": _overlay(Path(args.overlay), args.dtype, *about) if args.overlay else None,
    }


def _machine(topology: str, world: int | None) -> tuple[Preset, int]:
    if topology != "here":
        preset, ranks = PRESETS[topology], 8 if world is None else world
    else:
        snapshot = nvml.read()
        if len(snapshot.gpus) < 2:
            why = snapshot.problem or f"the driver shows {len(snapshot.gpus)} GPU(s)"
            raise CannotModel(f"--topology here: {why}; name one of {', '.join(PRESETS)}")
        preset = preset_for(snapshot, decide_islands(snapshot).islands is not None)
        ranks = len(snapshot.gpus) if world is None else world
    if not 2 <= ranks <= MAX_WORLD:
        raise CannotModel(f"--world {ranks}: 2 to {MAX_WORLD} ranks are served")
    return preset, ranks


def _row(preset: Preset, nbytes: int, world: int, item: int, islands: bool, figures: LinkFigures) -> dict[str, Any]:
    row: dict[str, Any] = {"bytes": nbytes}
    for name in model.NAMES:
        if name == "nccl":
            row[name] = model.nccl_us(preset.name, world, nbytes)
        else:
            row[name] = model.predict(name, world, nbytes, item, islands, figures)
    area = area_packs_for(world, max(nbytes, DEFAULT_BYTES))  # of a communicator that was not asked for less
    plan = choose(world, nbytes, item, islands, figures, area, USEFUL_BLOCKS)
    row["plan"] = plan and f"{plan.algorithm} {plan.blocks}x{plan.threads}"
    return row


def _distance(distance: model.Distance) -> dict[str, Any]:
    told = distance.point._asdict()
    return {**told, "algorithm": distance.algorithm, "modelled_us": distance.us, "ratio": distance.ratio}


def _overlay(path: Path, dtype: str, world: int, item: int, islands: bool, figures: LinkFigures) -> dict[str, Any]:
    """Our measured rows of this world and dtype. Graphs where there are some: launch_us is a graph's."""
    measured = Document.read(path)
    rows = [row for row in measured.rows if row.algorithm in ALGORITHMS and (row.world, row.dtype) == (world, dtype)]
    rows = [row for row in rows if row.mode == "graph"] or rows
    if not rows:
        there = sorted({(row.world, row.dtype) for row in measured.rows})
        told = ", ".join(f"{ranks} ranks of {name}" for ranks, name in there) or "nothing"
        raise CannotModel(f"--overlay {path}: no row of ours with {world} ranks of {dtype}; the file has {told}")
    label = f"{measured.environment.get('label', 'without a label')}; mode {rows[0].mode}"
    return {"file": path.name, "label": label, "rows": [_beside(row, item, islands, figures) for row in rows]}


def _beside(row: Row, item: int, islands: bool, figures: LinkFigures) -> dict[str, Any]:
    us = model.predict(row.algorithm, row.world, row.bytes, item, islands, figures)
    told = {"bytes": row.bytes, "algorithm": row.algorithm, "measured_us": row.us_median, "modelled_us": us}
    return {**told, "ratio": None if us is None else us / row.us_median}


def show(document: dict[str, Any], console: Console) -> None:
    islands = "two islands" if document["islands"] else "no islands"
    console.print(f"modelled: {document['title']}; {document['world']} ranks, {document['dtype']}, {islands}")
    shown = [name for name in model.NAMES if any(row[name] is not None for row in document["rows"])]
    cells = [[f"{row['bytes']:,}", *(_us(row[name]) for name in shown), row["plan"]] for row in document["rows"]]
    console.print(_table("microseconds a call", ["bytes", *shown], ["plan"], cells))
    for crossover in document["crossovers"]:
        console.print(f"from {crossover['nbytes']:,} bytes on, {crossover['to']} is cheaper than {crossover['before']}")
    _show_figures(document["figures"], console)
    if document["overlay"]:
        _show_overlay(document["overlay"], console)
    if document["published"]:
        _show_published(document["published"], console)


def _show_figures(figures: dict[str, Any], console: Console) -> None:
    cells = [[_us(known["value"]), name, f"{known['kind']}: {known['source']}"] for name, known in figures.items()]
    console.print(_table("\nthe figures behind it", ["value"], ["figure", "origin"], cells))


def _show_overlay(overlay: dict[str, Any], console: Console) -> None:
    cells = [
        [f"{row['bytes']:,}", _us(row["measured_us"]), _us(row["modelled_us"]), _ratio(row["ratio"]), row["algorithm"]]
        for row in overlay["rows"]
    ]
    console.print(f"\n{overlay['file']}: {overlay['label']}", markup=False)
    console.print(_table("", ["bytes", "measured", "modelled", "ratio"], ["algorithm"], cells))


def _show_published(published: list[dict[str, Any]], console: Console) -> None:
    remarks = list(dict.fromkeys(row["remark"] for row in published))
    cells = []
    for row in published:
        numbers = [
            f"{row['nbytes']:,}",
            str(row["world"]),
            _us(row["us"]),
            _us(row["modelled_us"]),
            _ratio(row["ratio"]),
        ]
        what = f"{row['system']} [{remarks.index(row['remark']) + 1}]"
        cells.append([*numbers, f"{row['algorithm']}, {row['preset']}", what])
    headings = ["bytes", "ranks", "published", "modelled", "ratio"]
    console.print(_table("\nagainst what others published, bf16", headings, ["modelled as", "published of"], cells))
    for index, remark in enumerate(remarks, 1):
        console.print(f"[{index}] {remark}", markup=False)


def _table(title: str, numbers: list[str], texts: list[str], cells: list[list[str]]) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in (*numbers, *texts):
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    return table


def _us(us: float | None) -> str:
    return "-" if us is None else f"{us:,.{2 if us < 100 else 1 if us < 1000 else 0}f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _sizes(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of bytes, such as 14336,43008")
    return tuple(map(int, words))


def _figures(text: str) -> dict[str, Figure]:
    known = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        if name.strip() not in FIGURES:
            raise argparse.ArgumentTypeError(f"{name.strip()!r} is none of {', '.join(FIGURES)}")
        try:
            number = float(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{word.strip()!r}: a number is needed after {name.strip()}=") from error
        if not 0 < number < 1e9:
            raise argparse.ArgumentTypeError(f"{word.strip()!r} must be within 0 and 10^9")
        known[name.strip()] = Figure(number, "assumed", "given with --figures")
    return known
