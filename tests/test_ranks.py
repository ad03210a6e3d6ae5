"""The pool itself: it must report what ranks do wrong, in time, or every other test could pass or hang by accident."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, RanksError, run_ranks, start_ranks


def summed(me: Rank, value: int) -> tuple[int, int, float]:
    total = torch.tensor([float(value + me.rank)])
    dist.all_reduce(total)
    return me.rank, os.getpid(), total.item()


def raising(me: Rank) -> None:
    if me.rank == 1:
        raise ValueError("seven is not eight")
    me.meet()


def hanging(me: Rank) -> None:
    if me.rank == 1:
        time.sleep(600)


def sleeping(me: Rank) -> None:
    me.tell("begun")
    time.sleep(600 if me.rank == 1 else 0)


def dying(me: Rank) -> None:
    if me.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def unpicklable(me: Rank) -> object:
    return lambda: me


def test_results_come_back_in_rank_order_and_processes_are_reused() -> None:
    first = run_ranks(3, summed, 5)
    second = run_ranks(2, summed, 1)
    assert [rank for rank, _, _ in first] == [0, 1, 2]
    assert {total for _, _, total in first} == {18.0}
    assert {total for _, _, total in second} == {3.0}
    assert [pid for _, pid, _ in second] == [pid for _, pid, _ in first[:2]]


def test_an_exception_comes_back_with_its_remote_traceback() -> None:
    with pytest.raises(RanksError, match="rank 1 raised") as caught:
        run_ranks(3, raising, timeout=30)
    outcome = caught.value.outcomes[1]
    assert isinstance(outcome.value, ValueError)
    assert "seven is not eight" in outcome.text
    assert "raising" in outcome.text


def test_a_hung_rank_is_reported_with_its_stack_and_replaced() -> None:
    pids = {pid for _, pid, _ in run_ranks(2, summed, 1)}
    begun = time.monotonic()
    with pytest.raises(RanksError, match="rank 1 hung") as caught:
        run_ranks(2, hanging, timeout=2)
    assert time.monotonic() - begun < 8
    assert caught.value.ranks("hung") == [1]
    assert "in hanging" in caught.value.outcomes[1].text
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert pids.isdisjoint(pid for _, pid, _ in run_ranks(2, summed, 1))


def test_a_dead_rank_is_reported_with_its_signal() -> None:
    with pytest.raises(RanksError, match="rank 0 died") as caught:
        run_ranks(2, dying, timeout=30)
    assert "-9" in caught.value.outcomes[0].text


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(RanksError, match="cannot be pickled"):
        run_ranks(2, unpicklable)


def test_own_processes_can_be_killed() -> None:
    with start_ranks(2, sleeping) as ranks:
        ranks.await_told("begun")
        ranks.kill(1)
        outcomes = ranks.collect(30)
    assert [outcome.kind for outcome in outcomes] == ["returned", "died"]
