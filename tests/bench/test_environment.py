"""The stamp: looked up, complete, and without the name of the host."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.settings import Machine, Request, Settings, settle

CPU = Machine(gpus=0, cuda_build=False, mps=False)
SHARED = Machine(gpus=2, cuda_build=True, mps=True)


def settings(ranks: int = 2, machine: Machine = CPU) -> Settings:
    return settle(Request(ranks=ranks), machine)


def test_the_stamp_says_what_a_reader_must_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    stamp = environment.stamp(settings(), CPU)
    assert {"date", "version", "commit", "build", "python", "torch", "torch_cuda", "driver", "gpus"} <= set(stamp)
    assert {"topology", "p2p", "mps", "cpu", "settings", "method", "input", "not_run"} <= set(stamp)
    assert stamp["nccl"]["variables"]["NCCL_ALGO"] == "Ring"
    assert stamp["nccl"]["set_for"]["nccl-p2p-off"] == {"NCCL_P2P_DISABLE": "1"}
    assert stamp["settings"]["sizes"][0] == 1024
    assert stamp["date"].endswith("+00:00")
    assert "slowest rank" in stamp["method"]


def test_the_host_is_not_named() -> None:
    assert json.dumps(socket.gethostname()) not in json.dumps(environment.stamp(settings(), CPU))


def test_measured_emulated_and_cpu_are_told_apart() -> None:
    cases = [(2, CPU, "cpu"), (2, SHARED, "measured"), (8, SHARED, "emulated")]
    for ranks, machine, kind in cases:
        chosen = settings(ranks, machine)
        assert environment.kind(chosen) == kind
        assert environment.label(chosen).lower().startswith(kind)


def test_rank_facts_are_merged() -> None:
    stamp = environment.stamp(settings(), CPU)
    environment.add_rank_facts(stamp, {})
    assert stamp["gpus"] == []
    environment.add_rank_facts(stamp, {"gpus": [{"name": "A"}], "p2p": [[True]], "nccl_version": "2.28.9"})
    assert (stamp["gpus"], stamp["p2p"], stamp["nccl"]["version"]) == ([{"name": "A"}], [[True]], "2.28.9")


def test_a_tool_that_is_missing_fails_or_hangs_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "TOOL_LIMIT", 0.2)
    assert environment.run_tool("no-such-tool-anywhere") is None
    assert environment.run_tool("false") is None
    assert environment.run_tool("sleep", "5") is None
    assert environment.run_tool("cat", stdin=" text\n") == "text"


@pytest.mark.parametrize(
    ("script", "on"),
    [
        ("read words; [ $words = get_server_list ] && echo 4711", True),
        ("true", True),  # a daemon that has not started a server yet
        ("echo 'Cannot find MPS control daemon process'", False),
        ("echo 'Cannot find MPS control daemon process' >&2; exit 1", False),
    ],
)
def test_mps_is_on_where_its_daemon_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, on: bool
) -> None:
    tool = tmp_path / "nvidia-cuda-mps-control"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert environment.mps_answers() is on


def test_mps_is_off_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.mps_answers() is False


def checkout(folder: Path) -> str:
    """A repository whose package is the one under test by name only; returns its commit."""
    module = folder / "pcie_allreduce" / "bench" / "environment.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_the_checkouts_and_says_when_sources_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = checkout(tmp_path)
    module = tmp_path / "pcie_allreduce" / "bench" / "environment.py"
    monkeypatch.setattr(environment, "__file__", str(module))
    assert environment.commit() == head
    (tmp_path / "notes.txt").write_text("not a source")
    assert environment.commit() == head
    module.write_text("changed")
    assert environment.commit() == f"{head}-dirty"


def test_another_repository_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "site-packages" / "environment.py"))
    monkeypatch.delenv("PCIE_ALLREDUCE_COMMIT", raising=False)
    assert environment.commit() is None
    monkeypatch.setenv("PCIE_ALLREDUCE_COMMIT", "abc123")
    assert environment.commit() == "abc123"
