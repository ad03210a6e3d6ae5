"""A fault in serving ends the rank's process and tells the launcher, its parent, as SGLang's ranks do."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
import torch
from ranks import Rank, start_ranks

import pcie_allreduce
from pcie_allreduce.integrations import fault_policy, sglang_group
from pcie_allreduce.integrations.adapter import EngineAllReduce
from pcie_allreduce.integrations.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

FAULT = pcie_allreduce.AllReduceTimeout("rank 1 is missing", rank=0, missing=(1,), stage="gather", call=7)
TIMEOUT = 1.0  # of a call
SECOND = 1.0  # in which the process must have ended


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """SIGQUITs that this process, the parent of the ranks, was sent."""
    told: list[int] = []
    kept = signal.signal(signal.SIGQUIT, lambda number, frame: told.append(number))
    yield told
    signal.signal(signal.SIGQUIT, kept)


def serves(me: Rank, calls: bool) -> None:
    """Rank 1 stays away from a call; or nobody calls, as in the replay of graphs, and a kernel of rank 0 reports."""
    settings = Settings(timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    fault = sglang_group.on_fault(settings)
    adapter = EngineAllReduce(me.group, torch.device("cpu"), name="tp:0", settings=settings, on_fault=fault)
    x = torch.ones(2, 256)
    adapter.custom_all_reduce(x)
    me.tell("served")
    if me.rank == 0 and calls:
        adapter.custom_all_reduce(x)
    if me.rank == 0:
        adapter.communicator.check = reports  # type: ignore[method-assign]
    time.sleep(60)


def reports() -> None:
    raise FAULT


@pytest.mark.parametrize("calls", [True, False], ids=["of a call", "of a replay"])
def test_a_fault_ends_the_process_within_a_second_and_tells_its_parent(calls: bool, signals: list[int]) -> None:
    with start_ranks(2, serves, calls) as pool:
        pool.await_told("served")
        outcome = pool.collect(TIMEOUT * calls + SECOND)[0]
    assert (outcome.kind, outcome.text) == ("died", "exit code 1")
    assert signals == [signal.SIGQUIT]


def test_raise_leaves_the_process_and_says_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        sglang_group.on_fault(Settings(on_fault="raise"))(FAULT)
    assert caplog.messages == ["pcie-allreduce: rank 1 is missing"]


def test_nothing_that_fails_on_the_way_keeps_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, a launcher that is gone."""

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            pass

        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    def gone() -> None:
        raise ProcessLookupError

    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(logging.getLogger(), "handlers", [Full()])
    with pytest.raises(ProcessLookupError):
        fault_policy.on_fault(Settings(), gone)(FAULT)
    assert ended == [1]
