"""Rank processes end, whatever happens in them, and the reason told is the cause and not a consequence."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pytest

from pcie_allreduce.bench import ranks
from pcie_allreduce.bench.backends.catalogue import Job, Pass
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed, run_pass
from pcie_allreduce.bench.rows import Row
from pcie_allreduce.bench.settings import Machine, Request, Settings, settle

CPU = Machine(gpus=0, cuda_build=False, mps=False)
Children = Callable[[], list[BaseProcess]]
LIMIT = 120.0  # seconds; two processes that import torch on a busy machine


def settings(repeats: int = 1, sizes: tuple[int, ...] = (1024,)) -> Settings:
    return settle(Request(ranks=2, sizes=sizes, repeats=repeats), CPU)


@pytest.fixture
def started() -> Children:
    """The processes that this test has started and that are alive, by name; other tests keep some of theirs."""
    others = multiprocessing.active_children()

    def now() -> list[BaseProcess]:
        own = [child for child in multiprocessing.active_children() if child not in others]
        return sorted(own, key=lambda child: child.name)

    return now


def test_rows_and_steps_are_heard_and_no_process_is_left(started: Children) -> None:
    heard: list[Message] = []
    run_pass(settings(), Pass({}, (Job("gloo"),)), heard.append, silence=LIMIT)
    assert [message.kind for message in heard] == ["facts", "step", "row", "step"]
    row = heard[2].value
    assert isinstance(row, Row)
    assert (row.backend, row.exact, row.identical, row.correctly_rounded) == ("gloo", True, True, True)
    assert not started()


def test_a_backend_that_cannot_run_here_is_told_with_its_reason_and_the_others_run() -> None:
    heard: list[Message] = []
    jobs = (Job("torch-symm-mem", "one_shot"), Job("torch-symm-mem", "two_shot"), Job("gloo"))
    run_pass(settings(), Pass({}, jobs), heard.append, silence=LIMIT)
    assert [message.kind for message in heard] == ["facts", "not run", "not run", "step", "row", "step"]
    assert heard[1].value == heard[2].value == ("torch-symm-mem", "needs GPUs")


def test_the_environment_of_a_pass_is_set_in_its_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo cannot meet over an interface that is not there, so that the variable is seen to arrive."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with pytest.raises(RanksFailed, match=r"nowhere0"):
        run_pass(settings(), Pass({"GLOO_SOCKET_IFNAME": "nowhere0"}, (Job("gloo"),)), print, silence=LIMIT)
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_a_rank_that_fails_is_named_with_its_reason_and_traceback(started: Children) -> None:
    with pytest.raises(RanksFailed, match=r"^rank \d failed: ValueError: no backend is called 'mpi'$") as caught:
        run_pass(settings(), Pass({}, (Job("mpi"),)), print, silence=LIMIT)
    assert "Traceback" in caught.value.detail
    assert not started()


def test_a_killed_rank_is_the_cause_whatever_its_peers_say(started: Children) -> None:
    def hear(message: Message) -> None:
        if message.kind == "step" and not killed:
            killed.append(started()[1].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    with pytest.raises(RanksFailed, match=r"^rank \d was ended by SIGKILL$"):
        run_pass(settings(repeats=1000), Pass({}, (Job("gloo"),)), hear, silence=LIMIT)
    assert killed
    assert not started()


@pytest.mark.slow
def test_a_stopped_rank_ends_the_run_when_nobody_has_spoken_for_long(
    started: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "END_LIMIT", 1.0)  # a stopped process does not heed SIGTERM

    def hear(message: Message) -> None:
        if message.kind == "step" and not stopped:
            stopped.append(time.monotonic())
            for child in started():
                os.kill(child.pid or 0, signal.SIGSTOP)

    stopped: list[float] = []
    with pytest.raises(RanksFailed, match=r"no rank said anything for 10 s; not finished: rank\(s\) 0, 1"):
        run_pass(settings(repeats=1000), Pass({}, (Job("gloo"),)), hear, silence=10.0)
    assert time.monotonic() - stopped[0] < 60
    assert not started()
