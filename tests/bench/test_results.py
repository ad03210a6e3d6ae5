"""Tables on pages come from result files, and a page that differs from them is found."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.documents import FLOOR, NCCL, OURS, document

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PAGE = "Before.\n<!-- results:begin {0} -->\nold\n<!-- results:end {0} -->\nAfter.\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_results", ROOT / "benchmarks" / "render_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [OURS, NCCL, FLOOR, replace(OURS, bytes=14336, us_median=2.0, correctly_rounded=False)]
    (tmp_path / "results").mkdir()
    document(*rows).write(tmp_path / "results" / "two.json")
    emulated = document(replace(OURS, world=8), kind="emulated", label="emulated: 8 ranks share 2 GPU(s)")
    emulated.write(tmp_path / "results" / "eight.json")
    return tmp_path


def render(script: Any, folder: Path, name: str, *options: str) -> tuple[int, str]:
    page = folder / "page.md"
    page.write_text(PAGE.format(name))
    status = script.main(["--results", str(folder / "results"), *options, str(page)])
    return status, page.read_text()


@pytest.mark.parametrize("name", ["two", "measured"])
def test_a_table_says_what_was_measured_where(script: Any, folder: Path, name: str) -> None:
    status, text = render(script, folder, name)
    assert status == 0
    assert text.startswith("Before.\n<!-- results:begin")
    assert text.endswith(f"<!-- results:end {name} -->\nAfter.\n")
    assert "**Measured: 2 ranks, each with a GPU of its own.** 2 x A GPU, A CPU, 64 cores" in text
    assert "driver 580.1, commit 0123456789ab, 2026-01-02" in text
    assert (
        "| us per call (bf16, graph) | pcie_allreduce one_shot | nccl | floor | pcie_allreduce one_shot vs nccl |"
        in text
    )
    assert "| 43,008 B | 2.25 | 7.50 | 0.75 | 3.3x |" in text
    assert "| 14,336 B | 2.00 |  |  |  |" in text
    assert "pcie_allreduce: exact, bit-identical on all ranks, not always correctly rounded; nccl: exact" in text
    assert "old" not in text
    assert "emulated" not in text


def test_emulated_runs_are_apart_and_named_so(script: Any, folder: Path) -> None:
    _, text = render(script, folder, "emulated")
    assert "**Emulated: 8 ranks share 2 GPU(s).**" in text
    assert "Measured" not in text


def test_one_mode_can_be_asked_for(script: Any, folder: Path) -> None:
    document(OURS, replace(OURS, mode="eager", us_median=8.5)).write(folder / "results" / "modes.json")
    page = folder / "page.md"
    for mode, there, missing in (("graph", "2.25", "8.50"), ("eager", "8.50", "2.25")):
        page.write_text(f"<!-- results:begin modes {mode} -->\n<!-- results:end modes -->\n")
        script.main(["--results", str(folder / "results"), str(page)])
        assert f"| {there} |" in page.read_text()
        assert missing not in page.read_text()


def test_a_kind_without_a_run_says_so(script: Any, folder: Path) -> None:
    assert "No such run has been made." in render(script, folder, "cpu")[1]


def test_check_finds_a_stale_page_and_leaves_it(script: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = render(script, folder, "two", "--check")
    assert (status, text) == (1, PAGE.format("two"))
    assert "page.md: out of date" in capsys.readouterr().err
    render(script, folder, "two")
    assert script.main(["--check", "--results", str(folder / "results"), str(folder / "page.md")]) == 0


def test_a_number_edited_by_hand_is_found(script: Any, folder: Path) -> None:
    _, text = render(script, folder, "two")
    (folder / "page.md").write_text(text.replace("2.25", "1.25"))
    assert script.main(["--check", "--results", str(folder / "results"), str(folder / "page.md")]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PAGE.format("three"), "three.json"),
        ("<!-- results:begin two -->\n", "no partner"),
        ("<!-- results:begin two -->\n<!-- results:end eight -->\n", "no partner"),
    ],
)
def test_markers_that_lead_nowhere_are_errors(script: Any, folder: Path, text: str, words: str) -> None:
    (folder / "page.md").write_text(text)
    with pytest.raises(ValueError, match=words):
        script.main(["--results", str(folder / "results"), str(folder / "page.md")])


def test_the_pages_of_this_repository_are_current(script: Any) -> None:
    assert script.main(["--check"]) == 0


def test_the_pictures_are_drawn_from_the_results_that_are_kept() -> None:
    spec = importlib.util.spec_from_file_location("draw_results", ROOT / "benchmarks" / "draw_results.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {path.stem for path in (ROOT / "docs" / "pictures").glob("*.svg")} == set(module.LINKS)
    for name in module.LINKS:
        drawn = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
        assert module.origin(name) in drawn, f"{name}.svg is out of date; run benchmarks/draw_results.py"
