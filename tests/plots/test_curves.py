"""What is drawn: every backend, floor and prediction of a document, and nothing else."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.documents import NCCL, OURS

from pcie_allreduce.bench.rows import Document, Row
from pcie_allreduce.cli import model as model_command
from pcie_allreduce.plots.curves import FLOOR, MEASURED, MODELLED, Panel, bench_panels, model_panel, tune_panel
from pcie_allreduce.topology import Gpu, Link, Snapshot

SWITCH = Snapshot(
    tuple(Gpu(f"GPU-{rank}") for rank in range(2)),
    ((Link.SAME_GPU, Link.SINGLE_SWITCH), (Link.SINGLE_SWITCH, Link.SAME_GPU)),
    (("ok", "ok"),) * 2,
)
NOTHING = Snapshot.unknown((), "no driver")


def panels(kind: str, rows: list[Row], snapshot: Snapshot = SWITCH) -> list[Panel]:
    return bench_panels(Document({"kind": kind}, rows), snapshot)


def test_every_backend_is_a_line_with_its_spread_and_the_floor_is_none_of_them() -> None:
    floor = replace(NCCL, backend="floor", exact=None, identical=None, correctly_rounded=None)
    rows = [replace(row, bytes=size) for size in (4096, 1024) for row in (OURS, NCCL, floor)]
    (panel,) = panels("measured", rows)
    lines = {curve.label: curve for curve in panel.curves}
    assert list(lines)[:3] == ["pcie_allreduce one_shot", "nccl", "floor"]
    assert [curve.kind for curve in panel.curves] == [MEASURED, MEASURED, FLOOR, MODELLED]
    assert lines["nccl"].points == ((1024, NCCL.us_median), (4096, NCCL.us_median))
    assert lines["nccl"].spread == ((NCCL.us_min, NCCL.us_max),) * 2


def test_fused_rows_are_a_line_of_their_own_and_are_not_predicted() -> None:
    rows = [replace(OURS, fused=fused, rows=3, hidden=7168) for fused in (True, False)]
    (panel,) = panels("measured", rows)
    assert [curve.label for curve in panel.curves[:2]] == ["pcie_allreduce fused one_shot", "pcie_allreduce one_shot"]
    (alone,) = panels("measured", rows[:1])
    assert [curve.kind for curve in alone.curves] == [MEASURED]


def test_each_mode_is_a_panel() -> None:
    rows = [replace(OURS, mode=mode) for mode in ("graph", "eager")]
    assert [panel.title for panel in panels("measured", rows)] == ["bf16, 2 ranks, graph", "bf16, 2 ranks, eager"]


@pytest.mark.parametrize(
    ("kind", "change", "snapshot", "label"),
    [
        ("measured", {}, SWITCH, "modelled, figures of pcie5-switch"),
        ("measured", {}, NOTHING, None),  # nothing is known of that machine
        ("measured", {"mode": "eager"}, SWITCH, None),  # the figures are a graph's
        ("measured", {"transport": "host"}, SWITCH, "modelled, figures of host-pcie5"),
        ("cpu", {"mode": "eager", "transport": "cpu"}, NOTHING, "modelled, figures of cpu"),
        ("emulated", {"world": 8}, NOTHING, "modelled, figures of emulated"),
        ("measured", {"backend": "nccl", "algorithm": "none"}, SWITCH, None),
    ],
)
def test_the_prediction_has_the_figures_of_the_machine_or_is_not_drawn(
    kind: str, change: dict[str, Any], snapshot: Snapshot, label: str | None
) -> None:
    (panel,) = panels(kind, [replace(OURS, **change)], snapshot)
    predicted = [curve.label for curve in panel.curves if curve.kind == MODELLED]
    assert predicted == ([] if label is None else [label])


def test_where_several_algorithms_served_the_prediction_is_of_the_quickest() -> None:
    rows = [replace(OURS, world=8, bytes=524288, algorithm=name) for name in ("one_shot", "two_shot")]
    both, alone = (panels("emulated", some, NOTHING)[0].curves[-1].points[0][1] for some in (rows, rows[1:]))
    assert both == alone


def test_a_model_is_all_modelled_but_what_is_known_of_nccl(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    model_command.add_parser(parser.add_subparsers())
    words = ["model", "--topology", "nvlink", "--world", "2", "--sizes", "14336,43008"]
    document = model_command.predictions(parser.parse_args(words))
    kinds = {curve.label: curve.kind for curve in model_panel(document).curves}
    assert kinds["one_shot"] == MODELLED and kinds["floor"] == FLOOR and kinds["nccl, as known"] == MEASURED
    assert "pull" not in kinds  # not modelled there


def test_a_tuning_has_the_untuned_plan_the_best_and_the_fallback() -> None:
    def candidate(algorithm: str, us: float, untuned: bool = False) -> dict[str, Any]:
        return {"algorithm": algorithm, "us_median": us, "untuned": untuned}

    sizes = [
        {"bytes": 1024, "candidates": [candidate("one_shot", 3.0, True), candidate("two_shot", 2.0)]},
        {"bytes": 4096, "candidates": [candidate("one_shot", 4.0, True), candidate("none", 9.0)]},
    ]
    document = {"sizes": sizes, "environment": {"settings": {"dtype": "bf16", "ranks": 2}}}
    lines = {curve.label: curve.points for curve in tune_panel(document).curves}
    assert lines["untuned plan"] == ((1024, 3.0), (4096, 4.0))
    assert lines["best of ours"] == ((1024, 2.0), (4096, 4.0))
    assert lines["fallback"] == ((4096, 9.0),)
