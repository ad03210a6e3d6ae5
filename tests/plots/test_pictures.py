"""Every picture is drawn into a file, and what cannot be drawn is one sentence before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pcie_allreduce.bench.rows import Document
from pcie_allreduce.bench.settings import CannotRun
from pcie_allreduce.cli.main import main
from pcie_allreduce.plots import canvas
from pcie_allreduce.plots.bars import draw_passes
from pcie_allreduce.plots.canvas import check_plot
from pcie_allreduce.plots.heat import Map, draw_heat, draw_probe, probe_maps
from pcie_allreduce.plots.latency import draw_bench
from pcie_allreduce.topology import Snapshot

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
NOTHING = Snapshot.unknown((), "no driver")
HEAD = b"\x89PNG\r\n"


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib")


def texts(path: Path) -> str:
    """All that is written in an SVG file; matplotlib leaves it in comments beside the glyphs."""
    return path.read_text()


def pass_row(backend: str, rows: int, us: float, alone: float) -> dict[str, Any]:
    added = us - alone
    told = {"backend": backend, "rows": rows, "all_reduces": 123, "us_median": us, "alone_us": alone}
    return {**told, "communication_us": added, "share": added / us}


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.skipif(not RESULTS.is_dir(), reason="the tests run without the repository around them")
@pytest.mark.parametrize("name", ["h200x2-ranks2", "h200x2-ranks8", "cpu2-ranks2", "h200x2-host-ranks2"])
def test_every_kept_result_can_be_drawn(name: str, tmp_path: Path) -> None:
    document = Document.read(RESULTS / f"{name}.json")
    draw_bench(document, NOTHING, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(HEAD)
    draw_bench(document, NOTHING, str(tmp_path / "a.svg"))
    written = texts(tmp_path / "a.svg")
    assert ElementTree.fromstring(written).tag.endswith("svg")
    assert document.environment["label"] in written
    assert all(row.backend in written for row in document.rows)


@pytest.mark.usefixtures("_matplotlib")
def test_passes_are_stacked(tmp_path: Path) -> None:
    passes = [pass_row(name, rows, us, 5e3) for rows in (1, 3) for name, us in (("nccl", 2e4), ("ours", 6e3))]
    passes.append({**pass_row("no communication", 3, 5e3, 5e3), "all_reduces": 0})
    passes.append(pass_row("slower alone", 3, 4e3, 5e3))  # noise on a busy machine
    document = {"passes": passes, "shape": {"layers": 61}, "environment": {"label": "measured: two"}}
    draw_passes(document, str(tmp_path / "bars.svg"))
    written = texts(tmp_path / "bars.svg")
    assert "measured: two" in written and "no communication" not in written.replace("without communication", "")
    assert "75 %" in written


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize("values", [[[None, 1.0], [2.0, None]], [[None, None], [None, None]], [[0.0, 0.0], [0.0, 0.0]]])
def test_maps_are_drawn_whatever_was_measured(values: list[list[float | None]], tmp_path: Path) -> None:
    maps = [Map("one way", "us", values), Map("stores", "GB/s", values, less=False)]
    draw_heat([maps, maps[:1]], str(tmp_path / "heat.png"), "between two ranks")
    assert (tmp_path / "heat.png").read_bytes().startswith(HEAD)


TRAFFIC = {"latency_us": [[None, 0.7], [0.7, None]], "push_gbps": [[None, 47.0], [48.0, None]], "pull_gbps": []}


@pytest.mark.parametrize(
    ("direct", "host", "titles"),
    [
        (TRAFFIC, None, [["one way through the peers' memory", "stores to the peers' memory, alone"]]),
        (
            {"problem": "no P2P"},
            {**TRAFFIC, "push_gbps": []},
            [["one way through the host's memory"]],
        ),
        ({"problem": "no P2P"}, None, []),
    ],
)
def test_maps_are_of_what_the_probe_could_measure(
    direct: dict[str, Any], host: dict[str, Any] | None, titles: list[list[str]], tmp_path: Path
) -> None:
    measured = {"direct": direct, "host": host}
    assert [[each.title for each in line] for line in probe_maps(measured)] == titles
    pytest.importorskip("matplotlib")
    document = {"verdict": {"measured": measured, "line": "peer: all right " * 20}, "environment": {"label": "two"}}
    assert draw_probe(document, str(tmp_path / "probe.svg")) is bool(titles)
    assert (tmp_path / "probe.svg").exists() is bool(titles)


@pytest.mark.slow
@pytest.mark.usefixtures("_matplotlib")
def test_the_commands_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCIE_ALLREDUCE_CACHE", str(tmp_path / "cache"))
    few = ["--device", "cpu", "--repeats", "1"]
    words = {
        "model": ["--topology", "pcie5-4+4"],
        "probe": few[:2],
        "bench": [*few, "--sizes", "1024,4096"],
        "tune": [*few, "--sizes", "1024,4096", "--dry-run"],
        "verify-cycle": [*few, "--layers", "1", "--hidden", "64", "--rows", "1,3"],
    }
    for command, options in words.items():
        path = tmp_path / f"{command}.png"
        assert main([command, *options, "--plot", str(path)]) == 0
        assert path.read_bytes().startswith(HEAD), command


@pytest.mark.parametrize("command", ["model", "probe", "bench", "tune", "verify-cycle"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(canvas, "find_spec", lambda name: None)
    device = [] if command == "model" else ["--device", "cpu"]
    assert main([command, *device, "--plot", str(tmp_path / "x.png")]) == 2
    assert "--plot needs matplotlib, which is not installed: pip install" in capsys.readouterr().err
    assert main([command, *device, "--plot", str(tmp_path / "x.bmp")]) == 2
    assert "the name must end in .png, .svg, .pdf" in capsys.readouterr().err
    with pytest.raises(CannotRun, match="no file can be written there"):
        check_plot("nowhere/x.png")
