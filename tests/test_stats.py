"""How long peers are waited for, and who looks for faults while no Python runs."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
from ranks import Rank, run_ranks

import pcie_allreduce
from pcie_allreduce import watcher

LATE = 0.3


def one_is_late(me: Rank) -> list[pcie_allreduce.PeerStats]:
    with me.communicator(max_bytes=4096) as comm:
        x = torch.ones(100, device=me.device)
        for call in range(20):
            if me.rank == 1 and call == 10:
                time.sleep(LATE)
            comm.all_reduce(x)
            if me.device.startswith("cuda"):
                torch.cuda.synchronize()
        return list(comm.stats())


def test_a_late_rank_is_seen_by_the_others(device: str) -> None:
    first, second, third = run_ranks(3, one_is_late, device=device)
    for stats in (first, third):
        assert stats[1].calls == 20
        assert 0.8 * LATE < stats[1].worst < LATE + 5.0
        assert stats[1].waited >= stats[1].worst
    assert first[0] == pcie_allreduce.PeerStats(0, 0, 0.0, 0.0), "nobody waits for itself"
    assert second[0].worst < first[1].worst, "the late rank waits for nobody"


def watched(me: Rank) -> tuple[float, str] | None:
    comm = me.communicator(max_bytes=4096, timeout=1.0, warmup_timeout=1.0)
    told: list[tuple[float, str]] = []
    watcher = comm.watch(lambda error: told.append((time.monotonic(), str(error))), interval=0.05)
    x = torch.ones(100, device=me.device)
    comm.all_reduce(x)
    begun = time.monotonic()
    if me.rank == 0:
        try:
            comm.all_reduce(x)
            if me.device.startswith("cuda"):
                torch.cuda.synchronize()
        except pcie_allreduce.AllReduceTimeout:
            pass
        time.sleep(0.5)
    else:
        time.sleep(3.0)
    watcher.stop()
    comm.close()
    return (told[0][0] - begun, told[0][1]) if told else None


def test_a_watcher_tells_a_fault_once_and_soon(device: str) -> None:
    waiting, _ = run_ranks(2, watched, device=device)
    assert waiting is not None
    after, said = waiting
    assert 0.9 < after < 2.5
    assert "rank 1" in said


def closed(me: Rank) -> None:
    comm = me.communicator(max_bytes=4096)
    watcher = comm.watch()
    comm.close()
    with pytest.raises(pcie_allreduce.ClosedError):
        comm.stats()
    with pytest.raises(pcie_allreduce.ClosedError):
        comm.watch()
    watcher.stop()


def test_a_closed_communicator_has_no_stats() -> None:
    run_ranks(2, closed)


class Looked:
    """Stands in for a communicator: one look goes wrong, the next finds a fault."""

    looks = 0

    def check(self) -> None:
        self.looks += 1
        if self.looks < 3:
            raise OSError("not now")
        raise pcie_allreduce.AllReduceTimeout("rank 1 is missing", rank=0, missing=(1,), stage="gather", call=7)


def test_a_watcher_outlives_a_look_and_a_callback_that_go_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(error: pcie_allreduce.PcieAllReduceError) -> None:
        raise OSError("nobody listens")

    ended, raised = threading.Event(), threading.Event()
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.set())
    monkeypatch.setattr(threading, "excepthook", lambda arguments: raised.set())
    looked = Looked()
    watcher.Watcher(looked.check, fails, 0.01, abort=True)
    assert ended.wait(10) and raised.wait(10)
    assert looked.looks == 3
    assert sum("a look for faults failed" in message for message in caplog.messages) == 1
