"""Communicators and the cache: rank 0's table counts on all ranks, and a log line says what became of it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from logged import logged
from ranks import Rank, run_ranks

import pcie_allreduce
from pcie_allreduce import _C, cache
from pcie_allreduce.plan import Step, Tuned

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (1024, 8192, 8194, 1 << 17)
WORLD = 3  # one_shot up to 16 KB, two_shot from there on, if nothing was tuned
TURNED: Tuned = (Step(2, 8192, "two_shot"), Step(2, 1 << 20, "one_shot"))


@contextlib.contextmanager
def cached_in(folder: str, tuned: str | None = None) -> Iterator[list[str]]:
    """The environment of a user with this cache; what is logged of tables."""
    before = dict(os.environ)
    os.environ["PCIE_ALLREDUCE_CACHE"] = folder
    os.environ.pop("PCIE_ALLREDUCE_TUNED", None)
    if tuned is not None:
        os.environ["PCIE_ALLREDUCE_TUNED"] = tuned
    try:
        with logged() as lines:
            yield lines
    finally:
        os.environ.clear()
        os.environ.update(before)


def tensor(nbytes: int) -> torch.Tensor:
    return torch.ones(nbytes // 2, dtype=torch.bfloat16)


def chosen(comm: Any) -> list[str]:
    """Of each size, after it was served that way."""
    for nbytes in SIZES:
        assert bool((comm.all_reduce(tensor(nbytes)) == comm.world_size).all())
    return [comm.algorithm_for(tensor(nbytes)) for nbytes in SIZES]


def keep(me: Rank, steps: Tuned, folder: str, **other: Any) -> None:
    """An entry as `tune` leaves it on this rank's disk, for this machine or for one that differs from it."""
    with me.communicator(algorithm="one_shot") as comm:
        os.environ["PCIE_ALLREDUCE_CACHE"] = folder
        cache.save_tuned(replace(comm.cache_key, **other), steps)
        del os.environ["PCIE_ALLREDUCE_CACHE"]


def with_tables(me: Rank, folder: str, tables: list[Tuned], tuned: str | None = None) -> tuple[list[str], list[str]]:
    own = f"{folder}/{me.rank}"
    keep(me, tables[me.rank], own)
    with cached_in(own, tuned) as lines, me.communicator() as comm:
        return chosen(comm), [line for line in lines if "table" in line]


def test_a_cached_table_decides_and_the_log_says_so_once(tmp_path: Path) -> None:
    results = run_ranks(WORLD, with_tables, str(tmp_path), [TURNED] * WORLD)
    assert [algorithms for algorithms, _ in results] == [["two_shot", "two_shot", "one_shot", "one_shot"]] * WORLD
    (line,), *others = (lines for _, lines in results)
    assert line.startswith(f"tuned table of {tmp_path}/0/cpu-{WORLD}-")
    assert line.endswith(".json is used")
    assert others == [[]] * (WORLD - 1)


@pytest.mark.parametrize("first", [TURNED, (Step(2, 1 << 20, "two_shot"),)])
def test_ranks_with_different_caches_agree(tmp_path: Path, first: Tuned) -> None:
    """Else they would call different algorithms, and no call would end well."""
    other = (Step(2, 1 << 20, "one_shot"),)
    results = run_ranks(WORLD, with_tables, str(tmp_path), [first, other, TURNED])
    expected = ["two_shot"] * 4 if first is not TURNED else ["two_shot", "two_shot", "one_shot", "one_shot"]
    assert [algorithms for algorithms, _ in results] == [expected] * WORLD


def test_a_cache_can_be_ignored(tmp_path: Path) -> None:
    results = run_ranks(WORLD, with_tables, str(tmp_path), [TURNED] * WORLD, "0")
    assert [algorithms for algorithms, _ in results] == [["one_shot", "one_shot", "one_shot", "two_shot"]] * WORLD
    assert results[0][1] == ["no tuned table is used: PCIE_ALLREDUCE_TUNED is 0"]


def with_a_stale_table(me: Rank, folder: str) -> tuple[list[str], list[str], list[str]]:
    other = {"version": "0.0.1", "cores": 999} if me.rank == 0 else {}  # the other ranks' own are good but do not count
    keep(me, TURNED, f"{folder}/{me.rank}", **other)
    with cached_in(f"{folder}/{me.rank}") as lines, me.communicator() as comm:
        algorithms = chosen(comm)
    with cached_in(f"{folder}/nothing") as others, me.communicator() as comm:
        assert chosen(comm) == algorithms
    return algorithms, [line for line in lines if "table" in line], [line for line in others if "table" in line]


def test_a_stale_table_is_ignored_with_the_fields_that_differ(tmp_path: Path) -> None:
    results = run_ranks(WORLD, with_a_stale_table, str(tmp_path))
    assert [algorithms for algorithms, *_ in results] == [["one_shot", "one_shot", "one_shot", "two_shot"]] * WORLD
    (stale,), (nothing,) = results[0][1:]
    assert stale.startswith("no tuned table is used, the cost model chooses: ")
    assert "cores: 999 there" in stale
    assert f'version: "0.0.1" there, "{_C.build_info()["version"]}" here' in stale
    assert stale.count(" there, ") == 2
    assert nothing.endswith(f"none for {WORLD} ranks of this kind in {tmp_path}/nothing")


def over_two_transports(me: Rank, folder: str) -> tuple[list[str], list[str], list[str]]:
    own = f"{folder}/{me.rank}"
    keep(me, (Step(2, 1 << 20, "two_shot"),), own)
    with cached_in(own) as lines:
        with me.communicator(transport="host") as comm:
            assert comm.cache_key.transport == "host"
            untuned = chosen(comm)
            key = comm.cache_key
        cache.save_tuned(key, TURNED)
        with me.communicator(transport="host") as comm:
            host = chosen(comm)
        with me.communicator() as comm:
            assert comm.cache_key.transport == "cpu"
            shared = chosen(comm)
    if me.rank == 0:
        first = next(line for line in lines if "table" in line)
        assert first.endswith('(transport: "cpu" there, "host" here)'), first
    return untuned, host, shared


def test_a_table_serves_the_transport_that_it_was_measured_with(tmp_path: Path) -> None:
    for untuned, host, shared in run_ranks(WORLD, over_two_transports, str(tmp_path)):
        assert untuned != shared
        assert host == ["two_shot", "two_shot", "one_shot", "one_shot"]
        assert shared == ["two_shot"] * 4


def with_a_faster_fallback(me: Rank, folder: str) -> None:
    steps = (Step(2, 8192, "two_shot", fallback=True), Step(2, 1 << 20, "two_shot"))
    keep(me, steps, f"{folder}/{me.rank}")
    with cached_in(f"{folder}/{me.rank}"):
        small, large, wide = tensor(1024), tensor(1 << 16), torch.ones(256)
        with me.communicator(fallback=me.group) as comm:
            assert comm.why_not(small) == "for 1024 bytes of torch.bfloat16 the fallback was measured to be faster"
            assert not comm.supports(small)
            assert (comm.algorithm_for(small), comm.plan_for(small)) == ("none", None)
            for out in (None, torch.zeros_like(small)):
                y = comm.all_reduce(small, out=out)
                assert out is None or y is out
                assert bool((y == me.world).all()) and bool((small == 1).all())
            assert comm.calls == 0
            square = torch.arange(16.0).reshape(4, 4).bfloat16()
            expected = (me.world * square).t().clone()
            comm.all_reduce(square.t(), out=square)  # the same memory in another order
            assert torch.equal(square, expected)
            assert comm.supports(large) and comm.supports(wide) and comm.why_not(tensor(0)) is None
            assert bool((comm.all_reduce(large) == me.world).all())
            assert comm.calls == 1
        with me.communicator() as comm:  # without a fallback: the best of ours
            assert comm.supports(small)
            assert comm.algorithm_for(small) == "two_shot"
        with me.communicator(fallback=me.group, algorithm="one_shot") as comm:  # asked for, so not overruled
            assert comm.algorithm_for(small) == "one_shot"


def test_a_step_lets_the_fallback_serve_where_there_is_one(tmp_path: Path) -> None:
    run_ranks(WORLD, with_a_faster_fallback, str(tmp_path))


def with_an_odd_fallback(me: Rank) -> str:
    with pytest.raises(pcie_allreduce.SetupError) as caught:
        me.communicator(fallback=me.group if me.rank == 1 else None)
    return str(caught.value)


def test_a_fallback_on_some_ranks_only_is_refused() -> None:
    """They would part at the first step that prefers it, as at the first tensor that is too large."""
    reasons = run_ranks(2, with_an_odd_fallback)
    assert set(reasons) == {"the ranks' fallback groups differ (rank 0: False, rank 1: True)"}


def replanned(me: Rank) -> None:
    with me.communicator() as comm:
        before = chosen(comm)
        comm.replan(TURNED)
        assert chosen(comm) == ["two_shot", "two_shot", "one_shot", "one_shot"]
        comm.replan(())
        assert chosen(comm) == before


def test_a_table_can_be_exchanged_between_calls() -> None:
    run_ranks(WORLD, replanned)
