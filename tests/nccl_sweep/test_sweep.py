"""A sweep's rank processes, with gloo in NCCL's place; and the command over made-up ranks, since NCCL needs GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.backends.catalogue import Job, Pass
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed, run_pass
from pcie_allreduce.bench.rows import Row
from pcie_allreduce.bench.settings import Machine, Request, Settings, settle
from pcie_allreduce.cli.main import main
from pcie_allreduce.nccl_sweep import run, worker
from pcie_allreduce.nccl_sweep.knobs import VARIABLES

TWO = Machine(gpus=2, cuda_build=True, mps=False)
MIB = 2**20


def test_ranks_tell_memory_and_rows() -> None:
    heard: list[Message] = []
    settings = settle(Request(ranks=2, sizes=(1024, 4096), repeats=1), Machine(0, False, False))
    run_pass(settings, Pass({}, (Job("gloo"),)), heard.append, silence=120.0, body=worker.measure)
    assert [message.kind for message in heard if message.kind != "step"] == ["facts", "memory", "row", "row"]
    assert [message.value for message in heard if message.kind == "memory"] == [None]  # no GPU, no device memory
    assert [message.value.exact for message in heard if message.kind == "row"] == [True, True]


def pretend(monkeypatch: pytest.MonkeyPatch, broken: str = "") -> None:
    """Ranks that answer at once: LL is quick, and each channel takes 9 MiB."""

    def ranks(settings: Settings, work: Pass, hear: Callable[[Message], None], **_: Any) -> None:
        (job,) = work.jobs
        variables = work.environment
        if broken and (job.backend == broken or broken in variables.values()):
            raise RanksFailed("rank 1 was ended by SIGSEGV")
        ours = job.backend == "pcie_allreduce"
        us = 3.0 if ours else 20.0 if variables.get("NCCL_PROTO") == "LL" else 40.0
        hear(Message("memory", 12 * MIB if ours else 9 * MIB * int(variables.get("NCCL_MAX_NCHANNELS", 16))))
        for size in settings.sizes:
            algorithm = "one_shot" if ours else "none"
            row = Row(job.backend, "none", algorithm, 2, 2, "bf16", size, "graph", us, us, us, 36, 3, True, True, True)
            hear(Message("row", row))

    monkeypatch.setattr(run, "run_pass", ranks)
    monkeypatch.setattr(environment, "machine", lambda: TWO)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_table_names_the_best_and_what_it_is_worth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch)
    path = tmp_path / "sweep.json"
    assert main(["bench", "--nccl-sweep", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "best for NCCL: NCCL_PROTO=LL NCCL_MIN_NCHANNELS=1 NCCL_MAX_NCHANNELS=1" in text
    assert "2.00 times as quick as what NCCL chooses by itself; +135 MiB saved on each GPU; ours is 6.67 times" in text
    written = json.loads(path.read_text())
    assert written["best"] == {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"}
    assert written["ours"] == {
        "us": {"14336": 3.0, "43008": 3.0, "57344": 3.0},
        "memory_bytes": 12 * MIB,
        "failure": None,
    }
    assert len(written["nccl"]) == 14 and len(written["rows"]) == 15 * 3


def test_a_setting_that_ends_its_ranks_is_a_line_and_no_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, broken="LL128")
    assert main(["bench", "--nccl-sweep"]) == 0
    assert "rank 1 was ended by SIGSEGV" in " ".join(capsys.readouterr().out.split())


def test_ours_failing_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pretend(monkeypatch, broken="pcie_allreduce")
    assert main(["bench", "--nccl-sweep"]) == 1
    assert "ours: rank 1 was ended by SIGSEGV" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device", "cpu"], "NCCL needs GPUs"),
        (["--backends", "nccl"], "--nccl-sweep does not go with --backends"),
        (["--algorithm", "island"], "--nccl-sweep does not go with --algorithm"),
        (["--json", "nowhere/x.json"], "no file can be written there"),
    ],
)
def test_what_cannot_be_swept_is_exit_code_2(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch)
    assert main(["bench", "--nccl-sweep", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_variables_that_are_set_already_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch)
    monkeypatch.setenv("NCCL_PROTO", "LL")
    assert main(["bench", "--nccl-sweep"]) == 2
    assert "--nccl-sweep sets NCCL_PROTO itself: unset it" in capsys.readouterr().err
