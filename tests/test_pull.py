"""Pull: GPUs read from each other. What it has in common with host memory: test_transports.py."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import DTYPES, difference, make_parts, to_bits
from test_transports import served_by

from pcie_allreduce.plan import Step
from pcie_allreduce.transport import GpuTransport

if TYPE_CHECKING:
    from collections.abc import Callable


def digest_of(me: Rank, options: dict[str, Any]) -> str:
    """Of all bit patterns, -0.0 among them, and of sums that round, in the order of calls."""
    digest = hashlib.sha256()
    with me.communicator(max_bytes=1 << 17, **options) as comm:
        for dtype in DTYPES:
            for seed, kind in enumerate(("mixed", "patterns")):
                x = make_parts(kind, me.world, 21509, dtype, seed)[me.rank].to(me.device)
                digest.update(to_bits(comm.all_reduce(x)).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("world", [2, 5, 8])
def test_the_bits_are_those_of_the_other_transports(world: int, device: str) -> None:
    pulled = {"transport": "pull"}
    digests = set(run_ranks(world, digest_of, {}, device=device))
    for algorithm in ("one_shot", "two_shot"):
        digests |= set(run_ranks(world, digest_of, {**pulled, "algorithm": algorithm}, device=device))
    assert len(digests) == 1


def negative_zeros(me: Rank, algorithm: str) -> None:
    with me.communicator(transport="pull", algorithm=algorithm) as comm:
        for dtype in DTYPES:
            x = torch.full((1021,), -0.0, dtype=dtype, device=me.device)
            for out in (torch.empty_like(x), x):
                problem = difference(comm.all_reduce(x, out=out), to_bits(torch.zeros_like(x)))
                assert problem is None, f"{dtype}: {problem}"


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_a_sum_is_never_minus_zero(algorithm: str, device: str) -> None:
    run_ranks(3, negative_zeros, algorithm, device=device)


def by_turns(me: Rank) -> set[str]:
    """On one channel: a flag counts the stages of both."""
    used = set()
    with me.communicator(transport="pull") as comm:
        comm.replan((Step(4, 4096, "one_shot"), Step(4, 1 << 20, "two_shot")))
        for call in range(300):
            x = torch.full((21504 if call % 3 else 1 + call,), float(me.rank + call), device=me.device)
            used.add(comm.algorithm_for(x))
            expected = me.world * call + me.world * (me.world - 1) // 2
            assert bool((comm.all_reduce(x) == expected).all()), f"call {call}"
    return used


@pytest.mark.parametrize("world", [3, 8])
def test_algorithms_by_turns(world: int, device: str) -> None:
    assert run_ranks(world, by_turns, device=device) == [{"one_shot", "two_shot"}] * world


@pytest.mark.gpu
def test_gpus_read_from_each_other() -> None:
    assert set(run_ranks(2, served_by, {"transport": "pull"}, device="cuda")) == {("pull", "one_shot")}


def fewer_blocks_on_rank_1(me: Rank) -> tuple[int, int]:
    share: Callable[[GpuTransport, int], None] = GpuTransport.share_gpu

    def less(transport: GpuTransport, ranks_on_this_gpu: int) -> None:
        share(transport, ranks_on_this_gpu)
        transport.max_blocks = 3 if me.rank == 1 else transport.max_blocks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuTransport, "share_gpu", less)
        with me.communicator(transport="pull", max_bytes=1 << 20) as comm:
            x = torch.full((1 << 18,), float(me.rank + 1), device=me.device)
            assert bool((comm.all_reduce(x) == 3.0).all())
            plan = comm.plan_for(x)
            assert plan is not None
            return plan.blocks, plan.threads


@pytest.mark.gpu
def test_ranks_agree_on_the_launch_shape() -> None:
    """A block reads what the peers' blocks of its number have staged."""
    assert set(run_ranks(2, fewer_blocks_on_rank_1, device="cuda")) == {(3, 256)}
