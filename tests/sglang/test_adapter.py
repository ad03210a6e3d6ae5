"""The object that an engine keeps as its custom all-reduce, driven as an engine drives it; needs no engine."""

from __future__ import annotations

import dataclasses
import gc
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from logged import logged
from ranks import Rank, run_ranks, start_ranks
from torch._dynamo.testing import CompileCounter

import pcie_allreduce
from pcie_allreduce.errors import SetupError
from pcie_allreduce.integrations import sglang_gather
from pcie_allreduce.integrations.adapter import EngineAllReduce
from pcie_allreduce.integrations.settings import Settings

SETTINGS = Settings(enabled=True, timeout=20.0, warmup_timeout=20.0, log_seconds=0.0)


def adapter_of(me: Rank, *, settings: Settings = SETTINGS, **options: Any) -> EngineAllReduce:
    options = {"name": "tp:0", "fallback": me.group, "on_fault": lambda error: None, **options}
    return EngineAllReduce(me.group, torch.device(me.device), settings=settings, **options)


def faces(me: Rank) -> None:
    adapter = adapter_of(me, settings=dataclasses.replace(SETTINGS, max_bytes=64 * 1024))
    assert adapter.disabled is False and adapter.original_disabled is False
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.full((4, 256), me.rank + 1, dtype=dtype)
        kept = x.clone()
        assert adapter.should_custom_ar(x) is True
        y = adapter.custom_all_reduce(x)
        assert y.data_ptr() != x.data_ptr() and torch.equal(x, kept)
        assert y.shape == x.shape and y.dtype == dtype and bool((y == me.world * (me.world + 1) / 2).all())
    with adapter.capture(), torch.inference_mode():
        assert float(adapter.custom_all_reduce(torch.ones(1, 256))[0, 0]) == me.world
    refused = [
        torch.ones(4, 256, dtype=torch.int32),
        torch.ones(4, 256, dtype=torch.float64),
        torch.ones(256, 4).t(),
        torch.ones(65, 256, dtype=torch.float32),
    ]
    for x in [*refused, torch.ones(1, 1), torch.ones(64, 256, dtype=torch.float16), torch.ones(8, device="meta")]:
        assert adapter.should_custom_ar(x) == adapter.communicator.supports(x)
    assert [adapter.should_custom_ar(x) for x in refused] == [False] * 4
    assert adapter.served == 4
    adapter.disabled = True
    assert adapter.should_custom_ar(torch.ones(4, 256)) is False
    adapter.close()
    adapter.close()


def test_it_has_the_face_that_engines_ask_for() -> None:
    run_ranks(2, faces)


def gathers(me: Rank) -> None:
    adapter = adapter_of(me, settings=dataclasses.replace(SETTINGS, max_bytes=64 * 1024))
    x, out = torch.full((3, 100), me.rank + 1.0), torch.empty(3 * me.world, 100)
    assert not adapter.gather_into(x, out)  # until somebody routes them
    assert adapter.route_gathers() is None
    everyone = [*range(1, me.world + 1)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for shape in [(3 * me.world, 100), (me.world, 3, 100), (me.world * 300,)]:  # as engines shape it
            whole = torch.full(shape, float("nan"), dtype=dtype)
            assert adapter.gather_into(x.to(dtype), whole)
            assert [float(part.unique()) for part in whole.view(-1).tensor_split(me.world)] == everyone
    numbered = torch.arange(24.0).view(2, 3, 4) + 24 * me.rank
    for dim in (0, 1, 2, -1, -2, -3):
        side_by_side = adapter.gather(numbered, dim)
        assert side_by_side is not None and side_by_side.is_contiguous()
        assert torch.equal(
            side_by_side, torch.cat([torch.arange(24.0).view(2, 3, 4) + 24 * r for r in range(me.world)], dim)
        )
    assert adapter.gather(numbered, 3) is None
    assert (adapter.gathered, adapter.served, adapter.declined) == (15, 0, 1)
    refused = [(x.int(), out.int()), (x.half(), out), (x.t(), out), (x, torch.empty(100, 3 * me.world).t())]
    refused += [(x, torch.empty(3, 100)), (torch.ones(()), torch.empty(me.world))]
    assert [adapter.gather_into(*pair) for pair in refused] == [False] * 6
    most = 64 * 1024 // 4 // me.world // 4 * 4
    assert adapter.gather_into(torch.ones(most), torch.ones(most * me.world))
    assert not adapter.gather_into(torch.ones(most + 4), torch.ones((most + 4) * me.world))
    adapter.disabled = True
    assert not adapter.gather_into(x, out)
    assert (adapter.gathered, adapter.served, adapter.declined) == (16, 0, 9)
    dist.barrier()


@pytest.mark.parametrize("world", [2, 3])
def test_it_gathers_where_that_is_asked_for(world: int) -> None:
    run_ranks(world, gathers)


def through_host_memory(me: Rank) -> str | None:
    adapter = adapter_of(me)
    adapter.communicator.transport = "host"
    told = adapter.route_gathers()
    assert not adapter.gathers
    return told


def test_all_gathers_that_would_be_all_reduces_are_left_to_the_engine() -> None:
    assert run_ranks(2, through_host_memory) == ["transport host would make all-reduces of them"] * 2


def test_a_group_of_another_shape_keeps_its_all_gathers() -> None:
    told = sglang_gather.attach(SimpleNamespace(), None)  # type: ignore[arg-type]
    assert told is not None and "without all_gather, _all_gather_into_tensor" in told


def pieces(me: Rank) -> None:
    """Every size by the same sum, whatever max_bytes is: values whose sum depends on the order."""
    whole = adapter_of(me)
    parts = adapter_of(me, settings=dataclasses.replace(SETTINGS, max_bytes=4096), every_size=True)
    random = torch.Generator().manual_seed(me.rank)
    for shape in [(1, 1), (4, 256), (7, 731), (64, 256)]:
        x = torch.randn(shape, generator=random, dtype=torch.float32).to(torch.bfloat16) * 10.0 ** (me.rank - 2)
        assert parts.should_custom_ar(x)
        assert torch.equal(parts.custom_all_reduce(x), whole.custom_all_reduce(x))
    assert not parts.should_custom_ar(torch.ones(64, 256, dtype=torch.int32))
    assert not parts.should_custom_ar(torch.ones(256, 64).t())
    assert parts.served == whole.served == 4
    dist.barrier()  # else a rank closes while another still sums


def test_every_size_means_the_same_sum_in_pieces() -> None:
    run_ranks(3, pieces)


def traced(me: Rank) -> tuple[list[bool], int]:
    """As SGLang 0.5.9 does: should_custom_ar is asked while Dynamo traces, with the number of rows a symbol."""
    adapter = adapter_of(me, settings=dataclasses.replace(SETTINGS, max_bytes=16 * 1024))
    counter = CompileCounter()

    def asks(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if adapter.should_custom_ar(x) else x - 1

    torch._dynamo.reset()
    compiled = torch.compile(asks, fullgraph=True, dynamic=True, backend=counter)
    answers = [bool(compiled(torch.zeros(rows, 256))[0, 0] == 1) for rows in (4, 5, 6, 7, 64, 65, 66, 67)]
    assert adapter.served == 0
    return answers, counter.frame_count


def test_dynamo_traces_the_question_once_for_yes_and_once_for_no() -> None:
    assert run_ranks(2, traced) == [([True] * 4 + [False] * 4, 2)] * 2


def groups_apart(me: Rank) -> None:
    """One object a group: calls of one do not advance the other, and either may close first."""
    pair = dist.new_group([0, 1])
    first = adapter_of(me, name="tp:0")
    second = adapter_of(me, name="pdmux_prefill_tp:0", fallback=pair)
    x = torch.ones(2, 256)
    for _ in range(5):
        first.custom_all_reduce(x)
        second.custom_all_reduce(x)
        first.custom_all_reduce(x)
    assert (first.served, second.served) == (10, 5)
    dist.barrier()
    second.close()
    assert float(first.custom_all_reduce(x)[0, 0]) == 2
    dist.barrier()


def test_groups_share_nothing() -> None:
    run_ranks(2, groups_apart)


def let_go(me: Rank) -> None:
    """GroupCoordinator.destroy only drops its reference, at a time of each rank's own."""
    adapter = adapter_of(me)
    adapter.custom_all_reduce(torch.ones(2, 256))
    communicator = adapter.communicator
    dist.barrier()
    time.sleep(0.3 * me.rank)
    del adapter
    gc.collect()
    with pytest.raises(pcie_allreduce.ClosedError):
        communicator.check()


def test_dropping_the_last_reference_closes_without_a_collective() -> None:
    run_ranks(2, let_go)


def left_to_the_fallback(me: Rank) -> None:
    """What a table or the probe leaves to NCCL is not told of as served."""
    adapter = adapter_of(me)
    adapter.custom_all_reduce(torch.ones(2, 256))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adapter.communicator, "all_reduce", torch.clone)
        adapter.custom_all_reduce(torch.ones(2, 256))
    assert (adapter.served, adapter.declined) == (1, 1)
    adapter.communicator.close()
    adapter.close()  # its owner was quicker


def test_what_the_communicator_leaves_to_its_fallback_is_the_engines() -> None:
    run_ranks(2, left_to_the_fallback)


def disagrees(me: Rank) -> None:
    """Else rank 0 would wait here for an all-gather that rank 1 makes elsewhere."""
    with pytest.raises(SetupError, match=r"GATHER differ \(rank 0: None and True, rank 1: None and False\)"):
        adapter_of(me, settings=dataclasses.replace(SETTINGS, gather=me.rank == 0))


def test_ranks_that_do_not_agree_on_what_is_served_are_refused() -> None:
    run_ranks(2, disagrees)


def tells(me: Rank) -> list[str]:
    with logged("pcie_allreduce.integrations.adapter") as lines:
        adapter = adapter_of(me)
        for _ in range(3):
            adapter.custom_all_reduce(torch.ones(2, 256))
        with adapter.capture():
            adapter.custom_all_reduce(torch.ones(2, 256))
        adapter.declined += 2
        dist.barrier()
        adapter.close()
    return lines


def test_the_log_tells_how_many_were_served() -> None:
    first, second = run_ranks(2, tells)
    assert first[-1] == "pcie-allreduce: group tp:0 served 4 all-reduces (2 went to the engine)"
    assert second == []  # one rank speaks for the group


def left_alone(me: Rank) -> tuple[list[str], float]:
    """Rank 1 is stopped or gone when rank 0 calls; the watcher then has the same to tell."""
    faults: list[str] = []
    quick = dataclasses.replace(SETTINGS, timeout=1.0, warmup_timeout=1.0)
    adapter = adapter_of(me, settings=quick, on_fault=lambda error: faults.append(str(error)))
    adapter.custom_all_reduce(torch.ones(2, 256))
    me.tell("ready")
    if me.rank == 1:
        time.sleep(600)
    begun = time.monotonic()
    with pytest.raises(pcie_allreduce.AllReduceTimeout):
        adapter.custom_all_reduce(torch.ones(2, 256))
    took = time.monotonic() - begun
    time.sleep(0.5)
    return faults, took


@pytest.mark.parametrize(
    ("number", "told"),
    [
        pytest.param(signal.SIGSTOP, "rank 1 is missing", marks=pytest.mark.slow),
        (signal.SIGKILL, "the process of rank 1 has ended"),
    ],
)
def test_a_fault_is_told_once_and_names_the_rank(number: int, told: str) -> None:
    with start_ranks(2, left_alone) as pool:
        pool.await_told("ready")
        pool.kill(1, number)
        outcome = pool.collect(15.0)[0]
    assert outcome.kind == "returned", outcome.text
    faults, took = outcome.value
    assert len(faults) == 1
    assert told in faults[0]
    assert took < 10.0


def watched(me: Rank) -> tuple[list[str], float]:
    """No call at all: what a kernel has reported is seen by the watch alone."""
    faults: list[tuple[str, float]] = []
    adapter = adapter_of(me, on_fault=lambda error: faults.append((str(error), time.monotonic())))
    reported = pcie_allreduce.AllReduceTimeout("rank 1 is missing", rank=0, missing=(1,), stage="gather", call=7)

    def check() -> None:
        raise reported

    begun = time.monotonic()
    adapter.communicator.check = check  # type: ignore[method-assign]
    time.sleep(1.0)
    return [text for text, _ in faults], faults[0][1] - begun


def test_the_watch_sees_a_fault_without_a_call() -> None:
    for texts, delay in run_ranks(2, watched):
        assert texts == ["rank 1 is missing"]
        assert delay < 0.9
