"""Single experiments on CPU ranks, over channels of scratch memory: what they count, and that they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from ranks import Rank, run_ranks

from pcie_allreduce import _C
from pcie_allreduce.probe.experiments import PAYLOAD_PACKS, Experiments, Kind, fill, run
from pcie_allreduce.probe.measurements import OK
from pcie_allreduce.probe.measuring import measure, tournament
from pcie_allreduce.rendezvous import Rendezvous
from pcie_allreduce.transport import CpuTransport


@contextmanager
def scratch(me: Rank, staged: bool, deadline: float = 20.0, spoil: bool = False) -> Iterator[Experiments]:
    transport = CpuTransport(me.rank, me.world, _C.PROBE_AREA_PACKS, 5.0, 5.0, "staged" if staged else "push")
    fill(transport)
    if spoil:
        words = np.memmap("/dev/shm" + transport.handle().decode(), dtype=np.uint32, mode="r+")
        words[_C.slab_bytes(0, False) // 4 + 4 * _C.PROBE_OUTBOX[0] + 7] ^= 1
    transport.open(me.gather(transport.handle()))
    me.meet()
    transport.forget_names()
    yield Experiments(transport, me.rank, me.world, deadline)
    me.meet()
    transport.close(1.0)


def one_by_one(me: Rank, staged: bool) -> dict[str, Any]:
    others = [peer for peer in range(me.world) if peer != me.rank]
    peer = others[0]
    with scratch(me, staged) as lab:
        found: dict[str, Any] = {"bursts": [lab.burst(size) for size in range(3)]}
        met = next(iter(tournament(me.world)))[me.rank]
        found["ping"] = (met is None, lab.ping(met, 4))
        found["push"] = lab.push(others, others, 2)
        found["pull"] = lab.pull(others, others, 2)
        found["poll"] = lab.once(Kind.POLL, peer, 0, 1000)
        found["fence"] = lab.once(Kind.FENCE, peer, 1, 1000)
        me.meet()
        if me.rank < 2:
            found["tear"] = lab.tear(1 - me.rank, me.rank == 0, 20000)
        found["problem"] = lab.problem
    return found


@pytest.mark.parametrize("staged", [False, True])
def test_every_experiment_measures_something(staged: bool) -> None:
    for rank, found in enumerate(run_ranks(3, one_by_one, staged)):
        assert found["problem"] is None
        assert found["bursts"] == [[OK] * 3] * 3
        idle, us = found["ping"]
        assert (us is None) == idle
        assert found["push"] > 0
        assert (found["pull"].gbps > 0, found["pull"].found) == (True, OK)
        assert found["poll"] > 0 and found["fence"] > 0
        if rank == 1:  # a CPU's 16-byte accesses are whole, which says nothing of PCIe
            assert sum(result.expected for result in found["tear"]) >= len(found["tear"]) == 256
            assert all(result.where == 0 and 1 <= result.got <= result.expected for result in found["tear"])


def unanswered(me: Rank) -> dict[str, Any]:
    """Rank 1 takes no part: whatever rank 0 waits for ends by the deadline."""
    found: dict[str, Any] = {}
    with scratch(me, False, deadline=0.3) as lab:
        if me.rank == 0:
            for name, wait in (
                ("burst", lambda: lab.burst(0)[1]),
                ("ping", lambda: lab.ping(1, 4)),
                ("push", lambda: lab.push([1], [1], 1)),
                ("pull", lambda: lab.pull([1], [1], 1)),
                ("tear", lambda: {result.finding for result in lab.tear(1, False, 10)}),
            ):
                begun = time.monotonic()
                found[name] = (wait(), time.monotonic() - begun)
    return found


def test_a_wait_in_vain_is_a_finding_and_no_hang() -> None:
    found = run_ranks(2, unanswered)[0]
    assert {name: value for name, (value, _) in found.items()} == {
        "burst": "did not arrive within 0.3 s (of 16 bytes)",
        "ping": None,
        "push": None,
        "pull": None,
        "tear": {2},
    }
    assert all(0.2 < took < 5.0 for _, took in found.values()), found


def spoiled(me: Rank) -> Any:
    """Rank 1 offers other bytes than it should."""
    with scratch(me, False, spoil=me.rank == 1) as lab:
        return lab.pull([1 - me.rank], [1 - me.rank], 1)


def test_bytes_that_are_read_changed_are_found() -> None:
    first, second = run_ranks(2, spoiled)
    assert (first.found, second.found) == ("were read changed", OK)


def failing(me: Rank) -> Any:
    """The native code of rank 1 raises once the bursts are over; nobody must wait for it."""
    with scratch(me, False, deadline=0.5) as lab:
        if me.rank == 1:
            lab._transport = Raises()  # type: ignore[assignment]
        return measure(Rendezvous(me.group), lab, 1)


class Raises:
    def measure(self, experiment: Any, deadline: float) -> Any:
        raise RuntimeError("measuring with the peers: cudaErrorLaunchFailure")


def test_a_rank_that_fails_is_told_to_all() -> None:
    told = run_ranks(2, failing)
    assert [traffic.problem for traffic in told] == ["rank 1: measuring with the peers: cudaErrorLaunchFailure"] * 2


def on_a_mailbox(me: Rank) -> list[str]:
    """Only the ping may touch the mailbox of a channel that is to make calls."""
    told = []
    transport = CpuTransport(me.rank, me.world, 64, 5.0, 5.0, "push")
    for kind, packs in ((Kind.PUSH, 1), (Kind.FILL, 0), (Kind.BURSTS, 1)):
        try:
            run(transport, (kind, 1, 0, 0, 0, 0, packs, 1), 1.0)
        except ValueError as error:
            told.append(str(error))
    transport.close(1.0)
    large = CpuTransport(me.rank, me.world, _C.PROBE_AREA_PACKS, 5.0, 5.0, "push")
    for kind, first, packs in ((Kind.PUSH, 0, PAYLOAD_PACKS + 1), (Kind.BURSTS, 8, _C.PROBE_BURST_PACKS)):
        try:
            run(large, (kind, 1, 0, 0, 0, first, packs, 1), 1.0)
        except ValueError as error:
            told.append(str(error))
    large.close(1.0)
    return told


def test_a_mailbox_is_no_scratch_memory() -> None:
    (told,) = run_ranks(1, on_a_mailbox)
    assert told == [
        *["only a channel of its own can be used as scratch memory"] * 3,
        *["an experiment of this size does not fit its scratch memory"] * 2,
    ]


@pytest.mark.parametrize("world", range(2, 9))
def test_in_a_tournament_everybody_meets_everybody_once(world: int) -> None:
    met = []
    for turn in tournament(world):
        for a, b in enumerate(turn):
            assert b is None or turn[b] == a != b
        met += [(a, b) for a, b in enumerate(turn) if b is not None and a < b]
    assert sorted(met) == list(combinations(range(world), 2))
