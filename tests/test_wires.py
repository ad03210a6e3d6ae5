"""Bad wires: what the first exchange finds, what a call finds, and what only a measurement could."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from ranks import Rank, left_in_shared_memory, run_ranks, shared_memory
from wires import Bad, wires

import pcie_allreduce
from pcie_allreduce import construction

PATIENCE = 1.0


def construct(me: Rank, *bad: Bad) -> str:
    """What the construction says; afterwards the same ranks work over good wires."""
    construction.GREETING_DEADLINE, before = PATIENCE, construction.GREETING_DEADLINE
    try:
        with wires(me, *bad):
            try:
                me.communicator(max_bytes=4096).close()
                told = ""
            except pcie_allreduce.SetupError as error:
                told = str(error)
            me.meet()
    finally:
        construction.GREETING_DEADLINE = before
    with wires(me), me.communicator(max_bytes=4096) as comm:
        assert comm.all_reduce(torch.ones(8))[0].item() == me.world
        me.meet()
    return told


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("corrupt", "rank 2 to rank 1: bytes arrived changed"),
        ("lose", f"rank 2 to rank 1: bytes did not arrive within {PATIENCE:g} s"),
        ("slow", f"rank 2 to rank 1: bytes did not arrive within {PATIENCE:g} s"),
        ("collapse", f"rank 2 to rank 1: bytes did not arrive within {PATIENCE:g} s"),
    ],
)
def test_a_bad_wire_is_found_before_the_first_call_and_named_by_all(kind: str, told: str) -> None:
    before = shared_memory()
    sentences = run_ranks(3, construct, Bad(2, 1, kind, seconds=2 * PATIENCE))
    assert len(set(sentences)) == 1, sentences
    assert sentences[0].startswith("the first exchange with the peers failed: "), sentences[0]
    assert sentences[0].count(" to rank ") == 1, f"only one wire is bad: {sentences[0]}"
    assert told in sentences[0]
    assert left_in_shared_memory(before) == set()


def test_a_wire_that_is_a_little_slow_passes() -> None:
    assert run_ranks(3, construct, Bad(2, 1, "slow", seconds=0.2 * PATIENCE)) == [""] * 3


def sums(me: Rank, algorithm: str, *bad: Bad) -> list[Any]:
    """The sums of calls over wires, or the error that ended them."""
    got: list[Any] = []
    options = {"max_bytes": 16384, "timeout": 2.0, "warmup_timeout": 2.0, "algorithm": algorithm}
    with wires(me, *bad):
        comm = me.communicator(**options)
        try:
            for call in range(12):
                x = torch.arange(1 + 97 * (call % 5), dtype=torch.float32) + me.rank
                begun = time.monotonic()
                got.append((comm.all_reduce(x).sum().item(), time.monotonic() - begun))
        except pcie_allreduce.PcieAllReduceError as error:
            got.append(str(error))
        me.meet()
        comm.close()
    return got


def exact(call: int, world: int) -> float:
    n = 1 + 97 * (call % 5)
    return world * n * (n - 1) / 2 + n * world * (world - 1) / 2


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_good_wires_change_nothing(algorithm: str) -> None:
    for got in run_ranks(3, sums, algorithm):
        assert [total for total, _ in got] == [exact(call, 3) for call in range(12)]


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_a_wire_that_breaks_later_ends_in_a_sentence_about_its_source(algorithm: str) -> None:
    results = run_ranks(3, sums, algorithm, Bad(2, 1, "lose", after=600))
    assert all(isinstance(got[-1], str) for got in results), results
    assert "rank 2 is missing" in results[1][-1], results[1]
    for got in results:
        assert all(total == exact(call, 3) for call, (total, _) in enumerate(got[:-1]))


def test_a_slow_wire_costs_time_and_nothing_else() -> None:
    for got in run_ranks(3, sums, "one_shot", Bad(2, 1, "slow", seconds=0.1, after=600)):
        assert [total for total, _ in got] == [exact(call, 3) for call in range(12)]
    slowed = got  # every rank waits for the one that waits, three times or more
    assert sum(took for _, took in slowed) > 0.2


def test_changed_bytes_after_the_start_are_a_wrong_sum() -> None:
    """No protocol of ours would find them: that is why the wires are tried before the first call."""
    _, second, _ = run_ranks(3, sums, "one_shot", Bad(2, 1, "corrupt", after=600))
    told = [item for item in second if isinstance(item, str)]
    wrong = [call for call, item in enumerate(second) if not isinstance(item, str) and item[0] != exact(call, 3)]
    assert told or wrong
