"""A soak that finds nothing proves nothing: here it must find a wrong sum, and a failure that is not told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, left_in_shared_memory, run_ranks, shared_memory

import pcie_allreduce
from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.worker import own_stream
from pcie_allreduce.cli.main import main
from pcie_allreduce.soak import run
from pcie_allreduce.soak.plan import FAILURES, IN_CHUNKS, KILLED, Round, draw, islands_of
from pcie_allreduce.soak.player import Counts, Player


def test_rounds_are_drawn_alike_and_hold_everything() -> None:
    rounds = [draw(1, 0, number, 4, kills=True) for number in range(200)]
    assert rounds == [draw(1, 0, number, 4, kills=True) for number in range(200)]
    assert {r.trouble for r in rounds} == {"none", "late", KILLED, *FAILURES}
    assert {r.algorithm for r in rounds} == {"auto", "one_shot", "two_shot", "island"}
    assert {r.transport for r in rounds} == {"auto", "host", "pull"}
    assert {r.culprit for r in rounds} == {0, 1, 2, 3}
    assert {call.collective for r in rounds for call in r.calls} == {"all_reduce", *IN_CHUNKS}
    assert all(call.elements % 4 == 0 for r in rounds for call in r.calls if call.collective in IN_CHUNKS)
    assert all(0 < call.nbytes <= r.max_bytes for r in rounds for call in r.calls)
    assert KILLED not in {draw(1, 0, number, 4, kills=False).trouble for number in range(200)}
    assert (islands_of(8), islands_of(3)) == ("0-3|4-7", None)


def of_trouble(trouble: str, world: int) -> Round:
    """A short round of that trouble."""
    chosen = next(r for r in (draw(1, 0, n, world, kills=False) for n in range(1000)) if r.trouble == trouble)
    at = min(chosen.at, 5)
    return replace(chosen, calls=chosen.calls[: at + 5], at=at, algorithm="auto", pause=0.05)


def sums_alone(round_: Round) -> Round:
    return replace(round_, calls=tuple(replace(call, collective="all_reduce") for call in round_.calls))


def played(me: Rank, trouble: str, patch: str) -> tuple[Counts, list[str]]:
    real = pcie_allreduce.Communicator.all_reduce

    def corrupted(self: Any, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        result = real(self, x, out=out)
        if me.rank == 1 and self.calls == 3:
            result.view(-1)[-1] += 1
        return result

    def silent(self: Any, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        return x.clone() if out is None else out.fill_(float("nan"))

    told: list[str] = []
    try:
        if patch:
            pcie_allreduce.Communicator.all_reduce = {"corrupted": corrupted, "silent": silent}[patch]  # type: ignore[method-assign]
        player = Player(Seat(me.rank, me.world, torch.device(me.device), me.group), 2.0, told.append)
        round_ = of_trouble(trouble, me.world)
        if patch:
            round_ = sums_alone(round_)
        with own_stream(torch.device(me.device)):
            assert player.play(replace(round_, calls=round_.calls[round_.at :], at=0) if patch == "silent" else round_)
        return player.counts, told
    finally:
        pcie_allreduce.Communicator.all_reduce = real  # type: ignore[method-assign]


@pytest.mark.parametrize("trouble", ["none", "late", *FAILURES])
def test_a_round_ends_as_it_must(trouble: str, device: str) -> None:
    for counts, told in run_ranks(3, played, trouble, "", device=device):
        assert told == []
        assert (counts.rounds, counts.wrong) == (1, 0)
        assert counts.bytes >= counts.calls


def test_a_wrong_sum_is_found() -> None:
    first, second = run_ranks(2, played, "none", "corrupted")
    assert first == (first[0], [])
    assert second[0].wrong == 1
    assert "a wrong result of" in second[1][0]


def test_a_failure_that_is_not_told_is_found() -> None:
    for _, told in run_ranks(2, played, "other_size", "silent"):
        assert len(told) == 1
        assert "other_size; told after" in told[0]


def test_the_command_soaks_and_says_so(tmp_path: Path) -> None:
    before = shared_memory()
    words = [
        "soak",
        "--seconds",
        "8",
        "--ranks",
        "3",
        "--device",
        "cpu",
        "--kills",
        "--json",
        str(tmp_path / "soak.json"),
    ]
    command = [sys.executable, "-m", "pcie_allreduce", *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "wrong results: 0"
    document = json.loads((tmp_path / "soak.json").read_text())
    soak = document["soak"]
    assert document["environment"]["kind"] == "cpu"
    assert soak["calls"] > 0
    assert sum(soak["faults"].values()) == soak["survived"]
    assert soak["complaints"] == []
    assert left_in_shared_memory(before) == set()


def test_a_soak_too_short_for_its_start_plays_a_round_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing played would pass for everything right."""
    assert main(["soak", "--seconds", "0.0001", "--timeout", "2", "--ranks", "2", "--device", "cpu"]) == 0
    assert ", 1 rounds, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--json", "nowhere/x.json"], "--json nowhere/x.json: no file can be written there"),
        (["--timeout", "1e9"], "--seconds 60, --timeout 1e+09: both must be positive, and --timeout at most 120"),
        (["--timeout", "nan"], "--seconds 60, --timeout nan: both must be positive, and --timeout at most 120"),
        (["--seconds", "nan"], "--seconds nan, --timeout 5: both must be positive, and --timeout at most 120"),
    ],
)
def test_what_cannot_be_soaked_is_said_before_anything_starts(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "soak", lambda *_: pytest.fail("it was started"))
    assert main(["soak", "--device", "cpu", *words]) == 2
    assert capsys.readouterr() == ("", sentence + "\n")
