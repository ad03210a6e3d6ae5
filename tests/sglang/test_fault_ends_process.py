"""A fault in serving ends the rank's process and tells the launcher, its parent, as SGLang's ranks do."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time

import pytest

import pcie_allreduce
from pcie_allreduce.integrations import sglang_group
from pcie_allreduce.integrations.settings import Settings

FAULT = pcie_allreduce.AllReduceTimeout("rank 1 is missing", rank=0, missing=(1,), stage="gather", call=7)


def end() -> None:
    sglang_group.on_fault(Settings(on_fault="abort"))(FAULT)
    time.sleep(60)


def test_abort_ends_the_process_and_tells_its_parent() -> None:
    told: list[int] = []
    kept = signal.signal(signal.SIGQUIT, lambda number, frame: told.append(number))
    try:
        rank = multiprocessing.get_context("fork").Process(target=end)
        rank.start()
        rank.join(60)
        assert rank.exitcode == 1
        assert told == [signal.SIGQUIT]
    finally:
        signal.signal(signal.SIGQUIT, kept)


def test_raise_leaves_the_process_and_says_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        sglang_group.on_fault(Settings(on_fault="raise"))(FAULT)
    assert caplog.messages == ["pcie-allreduce: rank 1 is missing"]
