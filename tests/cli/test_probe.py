"""`pcie-allreduce probe` on CPU ranks as a person runs it, and what it says of machines that are not at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from probe import boxes

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed
from pcie_allreduce.bench.settings import Machine
from pcie_allreduce.cli.main import main
from pcie_allreduce.probe import Measurements, run
from pcie_allreduce.probe.decision import Options, decide


def test_cpu_ranks_are_probed_told_written_and_kept(tmp_path: Path) -> None:
    path, where = tmp_path / "probe.json", tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pcie_allreduce", "probe", "--device", "cpu", "--ranks", "3", "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PCIE_ALLREDUCE_CACHE": str(where)},
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(path.read_text())
    assert data["environment"]["kind"] == "cpu" and data["seconds"] > 0
    assert data["verdict"]["transport"] == "cpu"
    measured = Measurements.from_dict(data["verdict"]["measured"])
    assert (measured.world, measured.fallback) == (3, "gloo")
    assert [each.nbytes for each in measured.compared] == [14336, 131072, 1048576]
    assert done.stdout.splitlines()[-1] == data["verdict"]["line"]
    for told in ("CPU ranks: 3 processes", "through the peers' memory", "through the host's memory", "ours and gloo"):
        assert told in done.stdout, done.stdout
    assert done.stdout.count("unchanged over all 6 directed pairs") == 2
    (file,) = where.iterdir()
    assert json.loads(file.read_text())["probe"] == data["verdict"]["measured"]


@pytest.fixture
def stands_for(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rank processes of GPUs that measured this."""
    monkeypatch.setattr(environment, "machine", lambda: Machine(gpus=8, cuda_build=True, mps=True))

    def put(box: Measurements | BaseException) -> None:
        def ranks(settings: Any, work: Any, hear: Any, body: Any) -> None:
            assert (settings.ranks, [job.backend for job in work.jobs]) == (8, ["nccl"])
            assert work.environment == {"PCIE_ALLREDUCE_PROBE": "new", "PCIE_ALLREDUCE_TUNED": "0"}
            if isinstance(box, BaseException):
                raise box
            hear(Message("verdict", (decide(box, Options(fallback=True, pull=False, host=False)), 1.9)))

        monkeypatch.setattr(run, "run_pass", ranks)

    return put


def test_what_a_person_reads_of_a_collapse(stands_for: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stands_for(boxes.collapse())
    assert main(["probe"]) == 1
    captured = capsys.readouterr()
    assert "probed in 1.9 s" in captured.err
    for told in (
        "bytes arrived unchanged over all 56 directed pairs",
        "      0        -     0.68     0.68     0.68     1.08",
        "findings:\n  stores collapse: rank 0 stores 2.7 GB/s to the ranks 1, 2, 3, 4, 5, 6, 7 while all do, and 47.5",
        "\n\nfallback: because stores collapse: ",
    ):
        assert told in captured.out, captured.out


def test_what_a_person_reads_where_nothing_could_be_measured(
    stands_for: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stands_for(boxes.no_p2p())
    assert main(["probe"]) == 1
    assert (
        "through the peers' memory:\n  checking P2P failed: rank 0: no P2P between cuda:0 and"
        in capsys.readouterr().out
    )


def test_a_healthy_machine_is_exit_code_0(stands_for: Any, tmp_path: Path) -> None:
    stands_for(boxes.slower_than_nccl())
    path = tmp_path / "x.json"
    assert main(["probe", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["verdict"]["fallback_wins_at"] == [14336, 131072, 1048576]


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (RanksFailed("rank 1 failed: because", "Traceback of rank 1"), 1, "rank 1 failed: because\n"),
        (KeyboardInterrupt(), 130, "interrupted; all ranks have been ended\n"),
    ],
)
def test_a_run_that_ends_early(
    stands_for: Any, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, told: str
) -> None:
    stands_for(error)
    assert main(["probe"]) == status
    assert capsys.readouterr().err == told


def test_what_cannot_be_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["probe", "--device", "cpu", "--ranks", "9"]) == 2
    assert main(["probe", "--device", "cpu", "--json", str(tmp_path / "none" / "x.json")]) == 2
    assert "no file can be written there" in capsys.readouterr().err
