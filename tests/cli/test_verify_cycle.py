"""`pcie-allreduce verify-cycle` as it is typed, on CPU ranks; docs/verify-cycle.md holds the worked example."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pcie_allreduce.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verify-cycle.md"
FEW = ["--device", "cpu", "--layers", "2", "--hidden", "64", "--repeats", "1"]


@pytest.mark.skipif(not PAGE.is_file(), reason="the tests run without the repository around them")
def test_the_page_shows_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-cycle", "--example"]) == 0
    shown = re.search(r"```\n\$ pcie-allreduce verify-cycle --example\n(.*?)\n```", PAGE.read_text(), flags=re.DOTALL)
    assert shown and shown[1] == capsys.readouterr().out.rstrip("\n")


def test_passes_of_cpu_ranks_are_measured_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "passes.json"
    assert main(["verify-cycle", *FEW, "--rows", "1,3", "--acceptance", "1.5", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["environment"]["kind"] == "cpu"
    assert (document["shape"]["layers"], document["shape"]["hidden"]) == (2, 64)
    assert [(row["rows"], row["backend"]) for row in document["passes"]] == [
        (rows, name)
        for rows in (1, 3)
        for name in ("no communication", "pcie_allreduce", "pcie_allreduce fused", "gloo")
    ]
    for row in document["passes"]:
        assert row["all_reduces"] == (0 if row["backend"] == "no communication" else 5)
        assert row["acceptance"] == (1.0 if row["rows"] == 1 else 1.5)
        cycle = row["us_median"] / (1 if row["rows"] == 1 else 0.97)
        assert row["tokens_per_second"] == pytest.approx(row["acceptance"] * 1e6 / cycle, rel=0.01)
    text = capsys.readouterr().out
    assert "CPU ranks: 2 processes" in text and "3 row(s), 384 bytes an all-reduce: a verify pass" in text
    assert "1.5 x 0.97 / pass (given, not measured)" in text


@pytest.mark.skipif(not PAGE.is_file(), reason="the tests run without the repository around them")
def test_the_page_shows_kept_results(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAGE.parents[1])
    shown = re.findall(
        r"```\n\$ pcie-allreduce verify-cycle (--show \S+)\n(.*?)\n```", PAGE.read_text(), flags=re.DOTALL
    )
    kept = Path("benchmarks/results/verify-cycle").glob("*.json")
    assert {words.split()[1] for words, _ in shown} == {str(path) for path in kept} != set()
    for words, output in shown:
        assert main(["verify-cycle", *words.split()]) == 0
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == output.splitlines()


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"environment": {}, "passes": []}'])
def test_what_is_no_result_is_refused_with_its_name(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.json").write_text(text)
    assert main(["verify-cycle", "--show", str(tmp_path / "odd.json")]) == 2
    assert "odd.json is not what `verify-cycle --json` writes" in capsys.readouterr().err
    assert main(["verify-cycle", "--show", str(tmp_path / "missing.json")]) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rows", "0"], "--rows 0: a pass here has 1 to 64 rows"),
        (["--ranks", "9"], "--ranks 9: an all-reduce here has 2 to 8 ranks"),
        (["--backends", "nccl"], "--backends nccl: not on cpu ranks"),
        (["--json", "nowhere/x.json"], "--json nowhere/x.json: no file can be written there"),
        (["--layers", "-1"], "--layers -1: it must be within 1"),
        (["--layers", "0"], "--layers 0: it must be within 1"),
        (["--hidden", "0"], "--hidden 0: it must be within 1"),
        (["--tp", "0"], "--tp 0: it must be within 1"),
        (["--context", "0"], "--context 0: it must be within 1"),
    ],
)
def test_what_cannot_be_run_is_exit_code_2(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-cycle", "--device", "cpu", *words]) == 2
    assert sentence in capsys.readouterr().err
