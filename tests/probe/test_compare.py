"""The comparison with the fallback: when it is made, and that a rank which fails in it leaves no other one waiting."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from logged import logged
from ranks import Rank, run_ranks

from pcie_allreduce import construction
from pcie_allreduce.probe import Compared, compare
from pcie_allreduce.probe.compare import name_of, slowest

GPU = torch.device("cuda", 0)


def start(me: Rank, folder: str, max_bytes: int) -> tuple[Any, list[str]]:
    """The verdict of a communicator that works, and what was logged."""
    os.environ["PCIE_ALLREDUCE_CACHE"] = folder
    with logged() as lines, me.communicator(max_bytes=max_bytes, probe=True, fallback=me.group) as comm:
        for n in (1, 1000, 1 << 19):  # the last is over max_bytes
            assert comm.all_reduce(torch.full((n,), me.rank + 1.0)).tolist() == [sum(range(me.world + 1))] * n
        me.meet()
        return comm.verdict, lines


def failing(me: Rank, folder: str, series: int) -> tuple[Any, list[str], float]:
    """Rank 1 fails behind this series of the timing."""
    done = 0
    real = compare._time

    def timed(*args: Any) -> float:
        nonlocal done
        took = real(*args)
        done += 1
        if me.rank == 1 and done == series:
            raise MemoryError("there is no memory left")
        return took

    compare._time = timed
    begun = time.monotonic()
    try:
        return (*start(me, folder, 1 << 20), time.monotonic() - begun)
    finally:
        compare._time = real


@pytest.mark.parametrize("series", [1, 3])
def test_a_rank_that_fails_in_it_leaves_none_in_a_call_of_the_fallback(tmp_path: Any, series: int) -> None:
    """Behind the first size, where the others are in calls of ours, and behind the last, before any of the fallback."""
    told = run_ranks(3, failing, str(tmp_path), series)
    for verdict, _, took in told:
        assert verdict.transport == "cpu" and verdict.compared == (), verdict.line
        assert took < 15, told
    (warning,) = [line for line in told[0][1] if line.startswith("not compared: ")]
    assert "rank 1: there is no memory left" in warning
    assert ("rank 1 closed the communicator before call " in warning) == (series == 1), warning


def unable(me: Rank, folder: str) -> tuple[Any, list[str]]:
    """A comparison of another group is there, and this one fails on rank 1 before anything is timed."""
    start(me, folder, 4096)
    real, name = compare.Contest, compare.name_of
    compare.name_of = lambda group, device: "another"

    def none(*args: Any) -> Any:
        if me.rank == 1:
            raise MemoryError("there is no memory left")
        return real(*args)

    compare.Contest = none  # type: ignore[assignment,misc]
    try:
        return start(me, folder, 4096)
    finally:
        compare.Contest, compare.name_of = real, name  # type: ignore[misc]


def test_where_it_fails_no_other_comparison_stands_for_it(tmp_path: Any) -> None:
    for verdict, _ in run_ranks(2, unable, str(tmp_path)):
        assert verdict.compared == () and verdict.measured.fallback is None, verdict.line


def no_mailbox(me: Rank, folder: str) -> tuple[Any, list[str]]:
    """There is memory for the mailbox, and not for the one of the comparison."""
    real, made = construction.CpuTransport, 0

    def allocated(*args: Any) -> Any:
        nonlocal made
        made += 1
        if me.rank == 1 and made == 4:  # two for experiments, the communicator's own, and this
            raise MemoryError("there is no memory left")
        return real(*args)

    construction.CpuTransport = allocated  # type: ignore[assignment,misc]
    try:
        return start(me, folder, 4096)
    finally:
        construction.CpuTransport = real  # type: ignore[misc]


def test_no_memory_for_it_is_no_refusal(tmp_path: Any) -> None:
    told = run_ranks(2, no_mailbox, str(tmp_path))
    for verdict, _ in told:
        assert (verdict.transport, verdict.compared) == ("cpu", ()), verdict.line
    assert any(line.startswith("not compared: allocating the mailbox failed: rank 1: ") for line in told[0][1]), told


def sizes(me: Rank, folder: str) -> list[tuple[str, list[int], tuple[Compared, ...]]]:
    verdicts = [start(me, folder, max_bytes)[0] for max_bytes in (4096, 8192, 4096, 8192)]
    return [(verdict.origin, [each.nbytes for each in verdict.compared], verdict.compared) for verdict in verdicts]


def test_it_is_made_again_for_sizes_that_it_lacks(tmp_path: Any) -> None:
    first, second, third, fourth = run_ranks(2, sizes, str(tmp_path))[0]
    (file,) = tmp_path.iterdir()
    assert [each[0] for each in (first, second, third, fourth)] == ["measured now", *[str(file)] * 3]
    assert [each[1] for each in (first, second)] == [[4096], [4096, 8192]]
    assert second[2] == third[2] == fourth[2]
    assert second[2][0] == first[2][0]


def test_captures_come_behind_all_calls_of_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture can fail on one rank alone; then no other one is still in a call."""
    steps: list[str] = []
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: "gloo")
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda out, group: steps.append(f"call {out.nbytes}"))
    contest = compare.Contest(torch.device("cpu"), None, (16, 32))
    contest._captures = True
    monkeypatch.setattr(contest, "_captured", lambda call: steps.append("capture"))
    contest.prepare_theirs()
    assert steps == [*["call 16"] * compare.WARMUP, *["call 32"] * compare.WARMUP, "capture", "capture"]


def test_nccl_is_named_with_its_version_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_VERSION", "2.0 of an image")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 3))
    assert name_of(None, GPU) == "nccl 2.28.3 NCCL_ALGO=Ring"
    assert name_of(None, torch.device("cpu")) == "gloo"


def test_nccl_is_named_where_torch_does_not_know_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Any:
        raise AttributeError("module 'torch._C' has no attribute '_nccl_version'")

    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: "nccl")
    monkeypatch.setattr(torch.cuda.nccl, "version", unknown)
    assert name_of(None, GPU).split()[0] == "nccl"


def test_the_slowest_rank_counts() -> None:
    ranks = [([1.0, 2.0], [3.0, 4.0]), ([1.5, 1.0], [2.0, 5.0])]
    assert slowest((16, 32), ranks) == (Compared(16, 1.5, 3.0), Compared(32, 2.0, 5.0))
