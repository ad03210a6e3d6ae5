"""The command as a person runs it: a short real run, and a sentence with an exit code for whatever is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pcie_allreduce.cli.main import main

# Of the result, not of the test: whichever GPUs are here, these runs measure CPU ranks.
CPU = ["bench", "--device", "cpu"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "pcie_allreduce", *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_two_cpu_ranks_are_measured_checked_and_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = command(*CPU, "--ranks", "2", "--sizes", "14336,43008", "--repeats", "2", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert f"written: {path}" in done.stderr
    assert "Traceback" not in done.stderr
    data = json.loads(path.read_text())
    rows = data["rows"]
    assert [(row["backend"], row["bytes"]) for row in rows] == [
        ("pcie_allreduce", 14336),
        ("gloo", 14336),
        ("pcie_allreduce", 43008),
        ("gloo", 43008),
    ]
    for row in rows:
        assert (row["world"], row["gpus"], row["dtype"], row["mode"], row["repeats"]) == (2, 0, "bf16", "eager", 2)
        assert 0 < row["us_min"] <= row["us_median"] <= row["us_max"]
        assert (row["exact"], row["identical"], row["correctly_rounded"]) == (True, True, True)
        assert row["backend"] in done.stdout
    assert (rows[0]["transport"], rows[0]["algorithm"]) == ("cpu", "one_shot")
    assert data["environment"]["kind"] == "cpu"
    assert data["environment"]["not_run"]["nccl"] == "needs GPUs"


def test_halves_make_the_same_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    words = ["--halves", "--ranks", "3", "--sizes", "1026,6144", "--repeats", "1"]
    assert main([*CPU, *words, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    names = ["pcie_allreduce", "pcie_allreduce-halves", "gloo", "gloo-halves"]
    assert [row["backend"] for row in rows] == names * 2
    assert all(row["exact"] and row["identical"] and row["correctly_rounded"] for row in rows[:2] + rows[4:6])
    assert "pcie_allreduce-halves" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_three_ranks_of_other_dtypes_are_right_at_odd_sizes(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "out.json"
    words = ["--ranks", "3", "--sizes", "4,1028", "--dtype", dtype, "--repeats", "1", "--backends", "pcie_allreduce"]
    assert main([*CPU, *words, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["dtype"], row["bytes"]) for row in rows] == [(dtype, 4), (dtype, 1028)]
    assert all(row["exact"] and row["identical"] and row["correctly_rounded"] for row in rows)


def test_recorded_inputs_are_reduced_for_fewer_ranks_and_named(tmp_path: Path) -> None:
    recorded = Path(__file__).resolve().parents[2] / "benchmarks" / "inputs" / "minilm_o_proj_tp8.npz"
    path = tmp_path / "out.json"
    words = ["--ranks", "4", "--input", str(recorded), "--repeats", "1", "--backends", "pcie_allreduce"]
    assert main([*CPU, *words, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    (row,) = data["rows"]
    assert (row["bytes"], row["world"], row["exact"], row["correctly_rounded"]) == (21504, 4, True, True)
    assert data["environment"]["input"]["file"] == recorded.name
    assert "all-MiniLM-L6-v2" in data["environment"]["input"]["provenance"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sizes", "1023"], "--sizes 1023: a size is a positive multiple of the 2 bytes of bf16"),
        (["--ranks", "9"], "--ranks 9: an all-reduce here has 2 to 8 ranks"),
        (["--dtype", "int8"], "--dtype int8: known are bf16, fp16, fp32"),
        (["--backends", "mpi"], "--backends mpi: known are"),
        (["--mode", "graph"], "--mode graph: CUDA graphs need GPUs"),
        (["--input", "nowhere.npz"], "--input nowhere.npz: not a recorded input file"),
        (["--json", "nowhere/x.json"], "--json nowhere/x.json: no file can be written there"),
        (["--sizes", "1024,1073741826"], "--sizes 1073741826: a communicator serves at most 1073741824 bytes"),
        (["--algorithm", "auto,island"], "--algorithm island: it needs two halves of two ranks at least, and 2 ranks"),
        (["--algorithm", "island", "--ranks", "5"], "--algorithm island: it needs two halves"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CPU, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(sentence)
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("words", [["--sizes", "many"], ["--sizes", ","], ["--ranks", "two"], ["--device", "tpu"]])
def test_words_that_are_no_values_are_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", *words])
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_asking_for_gpus_where_there_are_none_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    assert main(["bench", "--device", "cuda"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_a_rank_that_fails_is_one_sentence_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interface that is not there: the ranks cannot meet."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert main([*CPU, "--sizes", "1024", "--json", str(tmp_path / "out.json")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("rank ")
    assert "nowhere0" in captured.err
    assert "Traceback" not in captured.err
    assert "not run: pcie_allreduce, gloo: failed: rank " in captured.out.replace("\n", " ")
    assert not (tmp_path / "out.json").exists()
