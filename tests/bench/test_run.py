"""A whole run without ranks: which passes there are, what a failed one leaves, and the exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from bench.documents import FLOOR, NCCL, OURS, TUNED

from pcie_allreduce.bench import environment, run
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed
from pcie_allreduce.bench.settings import Machine, Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pcie_allreduce.bench.backends.catalogue import Pass
    from pcie_allreduce.bench.rows import Row
    from pcie_allreduce.bench.settings import Settings

ROWS = {row.backend: row for row in (OURS, NCCL, TUNED, FLOOR)}
REQUEST = Request(sizes=(43008,), modes=("graph",))


class Ranks:
    """Stands for the rank processes: tells one row for each job, or fails in the pass of `broken`."""

    def __init__(self, rows: dict[str, Row], broken: str = "", error: BaseException | None = None) -> None:
        self.rows, self.broken, self.error = rows, broken, error

    def __call__(self, settings: Settings, work: Pass, hear: Callable[[Message], None]) -> None:
        hear(Message("facts", {"gpus": [{"name": "A GPU"}], "p2p": [[True]], "nccl_version": "2.28.9"}))
        for job in work.jobs:
            hear(Message("step", job.label))
            if job.backend == self.broken:
                raise self.error or RanksFailed("rank 1 failed: because", "Traceback of rank 1")
            hear(Message("row", self.rows.get(job.backend, replace(NCCL, backend=job.backend))))


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(environment, "machine", lambda: Machine(gpus=2, cuda_build=True, mps=True))

    def started(
        ranks: Callable[..., None], request: Request = REQUEST, path: Path | None = None, debug: bool = False
    ) -> int:
        monkeypatch.setattr(run, "run_pass", ranks)
        return run.main(request, None, str(path) if path else None, debug)

    return started


def test_all_passes_end_in_one_document(start: Callable[..., int], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert start(Ranks(ROWS), path=path) == 0
    data = json.loads(path.read_text())
    names = ["pcie_allreduce", "nccl", "floor", "nccl-tuned", "nccl-p2p-off", "torch-symm-mem", "torch-symm-mem"]
    assert [row["backend"] for row in data["rows"]] == names
    assert data["environment"]["nccl"]["version"] == "2.28.9"
    assert data["environment"]["not_run"]["gloo"] == "serves CPU ranks only"


def test_a_failed_pass_keeps_the_rows_of_the_others(
    start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    assert start(Ranks(ROWS, broken="nccl-tuned"), path=path) == 1
    data = json.loads(path.read_text())
    assert "nccl-tuned" not in {row["backend"] for row in data["rows"]}
    assert len(data["rows"]) == 6
    assert data["environment"]["not_run"]["nccl-tuned"] == "failed: rank 1 failed: because"
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "rank 1 failed: because"
    assert "not run: nccl-tuned: failed: rank 1 failed: because" in captured.out


def test_debug_shows_the_traceback(start: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert start(Ranks(ROWS, broken="nccl"), debug=True) == 1
    assert "Traceback of rank 1" in capsys.readouterr().err


def test_a_wrong_sum_of_ours_is_said_and_is_exit_code_1(
    start: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(Ranks({**ROWS, "pcie_allreduce": replace(OURS, identical=False)})) == 1
    assert "sums are not identical on all ranks" in capsys.readouterr().err


def test_nothing_to_run_is_said_with_the_reason(start: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert start(Ranks(ROWS), replace(REQUEST, ranks=8, backends=("nccl",))) == 2
    assert "nothing to run: nccl: NCCL refuses two ranks on one GPU" in capsys.readouterr().err


def test_what_no_rank_could_run_is_said_with_the_reason(
    start: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def ranks(settings: Settings, work: Pass, hear: Callable[[Message], None]) -> None:
        hear(Message("not run", ("torch-symm-mem", "GPU 0 has no P2P with GPU(s) 1")))

    assert start(ranks, replace(REQUEST, backends=("torch-symm-mem",))) == 2
    assert "nothing to run: torch-symm-mem: GPU 0 has no P2P with GPU(s) 1" in capsys.readouterr().err


def test_an_interrupt_is_no_traceback(start: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert start(Ranks(ROWS, broken="nccl", error=KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted; all ranks have been ended\n"
