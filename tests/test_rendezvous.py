"""Construction is one decision: either every rank has a communicator, or every rank has the same readable reason."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import MAX_WORLD, Rank, left_in_shared_memory, run_ranks, shared_memory

import pcie_allreduce
from pcie_allreduce import _C


def refused(me: Rank, odd: int, common: dict[str, Any], special: dict[str, Any]) -> str:
    """Rank `odd` has other options than the rest; returns what it is told. Afterwards the ranks agree and work."""
    options = {**common, **special} if me.rank == odd else common
    before = shared_memory()
    with pytest.raises(pcie_allreduce.SetupError) as caught:
        me.communicator(**options)
    me.meet()
    left = left_in_shared_memory(before)
    assert not left, f"a refused construction left {left}"
    with me.communicator(max_bytes=4096) as comm:
        assert comm.all_reduce(torch.ones(4, device=me.device)).sum().item() == 4 * me.world
    return str(caught.value)


MISMATCHES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "max_bytes": ({"max_bytes": 65536}, {"max_bytes": 32768}, ("max_bytes", "65536", "32768")),
    "timeout": ({"timeout": 20.0}, {"timeout": 7.0}, ("timeout", "20", "7")),
    "warmup_timeout": ({"warmup_timeout": 20.0}, {"warmup_timeout": 25.0}, ("warm-up timeout", "20", "25")),
    "bad value on one": ({"max_bytes": 65536}, {"max_bytes": -1}, ("max_bytes", "-1")),
    "no number on one": ({"max_bytes": 65536}, {"max_bytes": "many"}, ("many",)),
    "no device on one": ({}, {"device": "tpu"}, ("tpu",)),
    "bad transport on one": ({}, {"transport": "pigeon"}, ("pigeon",)),
    "no such GPU on one": ({}, {"device": "cuda:99"}, ()),
}


@pytest.mark.parametrize("case", MISMATCHES)
@pytest.mark.parametrize(("world", "odd"), [(2, 0), (3, 2)])
def test_all_ranks_refuse_with_one_reason(world: int, odd: int, case: str) -> None:
    judge_refusal(world, odd, case)


def test_eight_ranks_refuse_with_one_reason() -> None:
    judge_refusal(8, 5, "max_bytes")


def judge_refusal(world: int, odd: int, case: str) -> None:
    common, special, parts = MISMATCHES[case]
    reasons = run_ranks(world, refused, odd, common, special)
    assert len(set(reasons)) == 1, "\n".join(reasons)
    missing = [part for part in (*parts, f"rank {odd}") if part not in reasons[0]]
    assert not missing, f"{reasons[0]!r} does not say {missing}"


def other_version(me: Rank) -> str:
    real = _C.build_info
    if me.rank == 1:
        _C.build_info = lambda: {**real(), "version": "0.0.0.other"}
    try:
        with pytest.raises(pcie_allreduce.SetupError) as caught:
            me.communicator()
        return str(caught.value)
    finally:
        _C.build_info = real


def test_different_versions_are_refused() -> None:
    reasons = run_ranks(2, other_version)
    assert len(set(reasons)) == 1
    assert "version" in reasons[0]
    assert "0.0.0.other" in reasons[0]
    assert _C.build_info()["version"] in reasons[0]


def too_many(me: Rank) -> str:
    with pytest.raises(pcie_allreduce.SetupError) as caught:
        me.communicator()
    return str(caught.value)


def test_nine_ranks_are_too_many() -> None:
    reasons = run_ranks(MAX_WORLD, too_many)
    assert len(set(reasons)) == 1, reasons
    assert "9" in reasons[0], reasons
    assert "8" in reasons[0], reasons


@pytest.mark.gpu
def test_cpu_and_gpu_ranks_do_not_mix() -> None:
    reasons = run_ranks(2, refused, 1, {}, {"device": "cpu"}, device="cuda")
    assert len(set(reasons)) == 1, reasons
    assert "cpu" in reasons[0], reasons
    assert "cuda" in reasons[0], reasons


def no_group(me: Rank) -> None:
    for group in ("gloo", 3, dist.GroupMember.NON_GROUP_MEMBER):
        with pytest.raises((TypeError, ValueError, pcie_allreduce.SetupError), match="group"):
            me.communicator(group=group)
    with me.communicator(group=None, max_bytes=4096) as comm:  # the default group, as everywhere in torch.distributed
        assert comm.all_reduce(torch.ones(4))[0].item() == me.world


def test_what_is_not_a_group_is_refused() -> None:
    run_ranks(2, no_group)


def one_never_comes(me: Rank) -> float:
    group = dist.new_group(timeout=datetime.timedelta(seconds=3))
    if me.rank == 1:
        time.sleep(6.0)
        return 0.0
    begun = time.monotonic()
    with pytest.raises(pcie_allreduce.SetupError):
        me.communicator(group=group, max_bytes=4096)
    return time.monotonic() - begun


def test_a_rank_that_never_comes_ends_within_the_groups_own_timeout() -> None:
    before = shared_memory()
    waited = run_ranks(3, one_never_comes)
    assert max(waited) < 5.5
    assert left_in_shared_memory(before) == set()


def memory_is_private(me: Rank) -> None:
    """The segments of a live communicator are mapped shared and cannot be reached by name any more."""
    with me.communicator(max_bytes=4096):
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "pcie_allreduce-" in line]
        assert lines, lines
        assert all(line.split()[1] == "rw-s" for line in lines), lines
        assert all(line.endswith("(deleted)") for line in lines), lines


def test_memory_of_cpu_ranks_is_shared_and_nameless() -> None:
    run_ranks(2, memory_is_private)


def one_rank_fails_at(me: Rank, step: str) -> str:
    from pcie_allreduce.transport import CpuTransport

    def refuse(*_: object) -> None:
        raise RuntimeError("the driver has no more handles")

    with pytest.MonkeyPatch.context() as patch:
        if me.rank == 1:
            patch.setattr(CpuTransport, step, refuse)
        with pytest.raises(pcie_allreduce.SetupError) as caught:
            me.communicator()
    with me.communicator() as comm:  # the group is as good as before
        comm.all_reduce(torch.ones(8))
    return str(caught.value)


@pytest.mark.parametrize("step", ["handle", "open", "greet"])
def test_a_step_that_fails_on_one_rank_fails_on_all_with_its_reason(step: str) -> None:
    for message in run_ranks(3, one_rank_fails_at, step):
        assert "rank 1: the driver has no more handles" in message
