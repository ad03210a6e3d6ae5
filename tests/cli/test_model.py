"""`pcie-allreduce model` as it is typed; docs/model.md holds its output, word for word."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pcie_allreduce import nvml
from pcie_allreduce.bench.rows import Document, Row
from pcie_allreduce.cli.main import main
from pcie_allreduce.construction import DEFAULT_MAX_BYTES
from pcie_allreduce.memory.buffers import DEFAULT_BYTES
from pcie_allreduce.plan import FIGURES
from pcie_allreduce.presets import PRESETS
from pcie_allreduce.topology import Gpu, Link, Snapshot

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
ROW = Row("pcie_allreduce", "peer", "one_shot", 2, 2, "bf16", 43008, "graph", 2.7, 2.6, 2.8, 9, 3, True, True, True)


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["model", *words]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def written(tmp_path: Path, *words: str) -> dict[str, Any]:
    path = tmp_path / "model.json"
    assert main(["model", *words, "--json", str(path)]) == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def measured(tmp_path: Path, *rows: Row) -> str:
    path = tmp_path / "bench.json"
    Document({"label": "measured: 2 ranks, each with a GPU of its own"}, list(rows)).write(path)
    return str(path)


@pytest.mark.skipif(not PAGE.is_file(), reason="the tests run without the repository around them")
def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"```\n\$ pcie-allreduce model ?([^\n]*)\n(.*?)\n```", PAGE.read_text(), flags=re.DOTALL)
    assert len(shown) >= 3
    for words, output in shown:
        assert typed(capsys, *words.split()) == output.splitlines()


@pytest.mark.skipif(not PAGE.is_file(), reason="the tests run without the repository around them")
def test_the_page_tells_the_crossovers(tmp_path: Path) -> None:
    told = {"pcie5-switch": 1, "pcie5-cpu": 1, "pcie5-4+4": 2, "pcie5-dual-socket": 2}
    text = PAGE.read_text()
    for topology, count in told.items():
        crossovers = written(tmp_path, "--topology", topology)["crossovers"]
        assert len(crossovers) == count
        assert all(f"{crossover['nbytes']:,} B" in text for crossover in crossovers)


def test_every_size_has_its_predictions_and_plan(capsys: pytest.CaptureFixture[str]) -> None:
    lines = typed(capsys, "--topology", "pcie5-4+4", "--sizes", "4096,43008", "--dtype", "fp32")
    assert lines[0] == "modelled: two PCIe 5 switches, each behind its uplink to the CPU; 8 ranks, fp32, two islands"
    assert lines[2].split() == ["bytes", "one_shot", "two_shot", "island", "pull", "floor", "plan"]
    assert [line.split()[0] for line in lines[4:6]] == ["4,096", "43,008"]
    assert "from 7,984 bytes on, island is cheaper than one_shot" in lines
    assert any(line.startswith(" 1.08  across_us    published: one way through a CPU") for line in lines)


def test_the_document_holds_what_the_table_shows(tmp_path: Path) -> None:
    document = written(tmp_path, "--world", "4", "--sizes", "1024,2097152")
    assert (document["kind"], document["world"], document["islands"], document["dtype"]) == (
        "modelled",
        4,
        False,
        "bf16",
    )
    assert set(document["figures"]) == set(FIGURES)
    first, last = document["rows"]
    assert set(first) == {"bytes", "one_shot", "two_shot", "island", "pull", "nccl", "floor", "plan"}
    assert (first["plan"], last["plan"].split()[0]) == ("one_shot 1x64", "two_shot")
    assert (first["island"], first["nccl"]) == (None, None)
    assert document["overlay"] is None


@pytest.mark.parametrize(("topology", "world", "nbytes"), [("nvlink", "4", 131072), ("pcie5-cpu", "3", 98304)])
def test_the_plan_is_that_of_a_communicator_as_it_is_made(
    topology: str, world: str, nbytes: int, tmp_path: Path
) -> None:
    """Its mailbox has room for 2 MiB, where one-shot fits that would not fit a mailbox of just these bytes."""
    (row,) = written(tmp_path, "--topology", topology, "--world", world, "--sizes", str(nbytes))["rows"]
    assert row["one_shot"] < row["two_shot"]
    assert row["plan"].startswith("one_shot ")
    assert DEFAULT_BYTES == DEFAULT_MAX_BYTES


def test_given_figures_replace_known_ones_and_say_so(tmp_path: Path) -> None:
    before = written(tmp_path, "--sizes", "1024")
    after = written(tmp_path, "--sizes", "1024", "--figures", "inside_us=1.68, launch_us=0.05")
    assert after["figures"]["inside_us"] == {"value": 1.68, "kind": "assumed", "source": "given with --figures"}
    assert after["rows"][0]["one_shot"] == pytest.approx(before["rows"][0]["one_shot"] + 1.0 - 0.5)
    assert after["rows"][0]["two_shot"] == pytest.approx(before["rows"][0]["two_shot"] + 2.0 - 0.5)


def test_measured_rows_lie_beside_the_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = [
        replace(ROW, backend="nccl", algorithm="none", us_median=7.5),
        replace(ROW, mode="eager"),
        replace(ROW, world=3),
    ]
    path = measured(tmp_path, ROW, *others)
    document = written(tmp_path, "--topology", "nvlink", "--world", "2", "--overlay", path)
    (row,) = document["overlay"]["rows"]
    assert (row["bytes"], row["algorithm"], row["measured_us"]) == (43008, "one_shot", 2.7)
    assert row["ratio"] == pytest.approx(row["modelled_us"] / 2.7)
    assert document["overlay"]["label"] == "measured: 2 ranks, each with a GPU of its own; mode graph"
    text = capsys.readouterr().out
    assert "bench.json: measured: 2 ranks, each with a GPU of its own; mode graph" in text
    assert re.search(r"43,008 +2\.70 +2\.08 +0\.77 +one_shot", text)


def test_this_machine_is_modelled_as_what_its_links_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    links = tuple(
        tuple(Link.SAME_GPU if a == b else Link.SINGLE_SWITCH if a // 2 == b // 2 else Link.SYSTEM for b in range(4))
        for a in range(4)
    )
    gpus = tuple(Gpu(f"GPU-{rank}", pcie_width=8, pcie_max_generation=4) for rank in range(4))
    monkeypatch.setattr(nvml, "read", lambda: Snapshot(gpus, links, (("ok",) * 4,) * 4))
    document = written(tmp_path, "--topology", "here")
    assert (document["topology"], document["world"], document["islands"]) == ("pcie4-dual-socket", 4, True)
    assert document["figures"]["egress_gbps"]["value"] == PRESETS["pcie4-dual-socket"].figures.egress_gbps / 2


def test_this_machine_is_not_modelled_without_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert main(["model", "--topology", "here"]) == 2
    assert capsys.readouterr().err.startswith(
        "--topology here: nvidia-ml-py is not installed; name one of pcie5-switch,"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--world", "9"], "--world 9: 2 to 8 ranks are served"),
        (["--world", "1"], "--world 1: 2 to 8 ranks are served"),
        (["--json", "nowhere/x.json"], "[Errno 2] No such file or directory: 'nowhere/x.json'"),
        (["--overlay", "nowhere.json"], "[Errno 2] No such file or directory: 'nowhere.json'"),
    ],
)
def test_what_cannot_be_modelled_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", sentence + "\n")


def test_an_overlay_without_a_fitting_row_says_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "--overlay", measured(tmp_path, ROW)]) == 2
    assert capsys.readouterr().err.endswith("no row of ours with 8 ranks of bf16; the file has 2 ranks of bf16\n")
    (tmp_path / "bench.json").write_text("[]")
    assert main(["model", "--overlay", str(tmp_path / "bench.json")]) == 2
    assert "is not a benchmark result" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--topology", "moon"],
        ["--sizes", "0"],
        ["--sizes", "many"],
        ["--figures", "speed=3"],
        ["--figures", "inside_us=fast"],
        ["--figures", "inside_us=-1"],
        ["--figures", "inside_us=nan"],
    ],
)
def test_words_that_are_no_values_are_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["model", *words])
    assert caught.value.code == 2
    assert words[1].split("=")[-1] in capsys.readouterr().err or "speed" in words[1]


def test_every_preset_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    for name in PRESETS:
        assert typed(capsys, "--topology", name, "--sizes", "43008")[0].startswith(f"modelled: {PRESETS[name].title};")
