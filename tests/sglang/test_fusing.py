"""Fused calls of the object that an engine keeps, asked and called as an engine's layers do it; needs no engine."""

from __future__ import annotations

import dataclasses
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from logged import logged
from ranks import Rank, run_ranks, start_ranks
from torch._dynamo.testing import CompileCounterWithBackend

import pcie_allreduce
from pcie_allreduce.integrations import seams, sglang_fused
from pcie_allreduce.integrations.adapter import EngineAllReduce
from pcie_allreduce.integrations.fusing import Fusing
from pcie_allreduce.integrations.settings import Settings
from pcie_allreduce.plan import Step

SETTINGS = Settings(enabled=True, timeout=20.0, warmup_timeout=20.0, max_bytes=64 * 1024, fused=True)
HIDDEN = 256
EPS = 1e-5
Results = tuple[torch.Tensor, torch.Tensor]


def adapter_of(me: Rank, *, settings: Settings = SETTINGS, **options: Any) -> EngineAllReduce:
    options = {"fallback": me.group if me.device == "cpu" else None, "on_fault": lambda error: None, **options}
    adapter = EngineAllReduce(me.group, torch.device(me.device), name="tp:0", settings=settings, **options)
    adapter.fuses = adapter.fusing.why_not() is None
    return adapter


def integers(me: Rank, rows: int, turn: int) -> torch.Tensor:
    """Every rank's part of the sum, and the residual: every dtype holds them exactly."""
    random = torch.Generator().manual_seed(1000 * turn + rows)
    return torch.randint(-256, 257, (me.world + 1, rows, HIDDEN), generator=random)


def operands(me: Rank, rows: int, turn: int = 0, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """This rank's part of the sum, the residual and the weight."""
    values = integers(me, rows, turn)
    weight = torch.arange(HIDDEN) % 15 - 7
    return tuple(tensor.to(dtype).to(me.device) for tensor in (values[me.rank], values[-1], weight))


def judge(me: Rank, results: Results, rows: int, turn: int = 0, bias: float = 0.0) -> None:
    normed, total = (tensor.cpu() for tensor in results)
    exact = integers(me, rows, turn).double().sum(0)
    assert torch.equal(total, exact.to(total.dtype)), "not the sum, rounded once"
    values = total.double()
    weight = (torch.arange(HIDDEN) % 15 - 7).double()
    expected = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPS) * (weight + bias)
    assert torch.allclose(normed.double(), expected, rtol=2**-8, atol=2**-20)


def served(me: Rank) -> None:
    adapter = adapter_of(me)
    for turn, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32)):
        x, residual, weight = operands(me, 4, turn, dtype)
        kept = x.clone(), residual.clone()
        assert adapter.should_fuse(x, residual, weight)
        for bias in (0.0, 1.0):
            results = adapter.fused_allreduce_rmsnorm(x, residual, weight, EPS, weight_bias=bias)
            judge(me, results, 4, turn, bias)
        assert torch.equal(x, kept[0]) and torch.equal(residual, kept[1])
        assert float(adapter.custom_all_reduce(torch.ones_like(x))[0, 0]) == me.world  # on the same mailboxes
    assert (adapter.fused, adapter.served) == (6, 9)
    assert adapter.served_with_replays() == 9
    dist.barrier()


@pytest.mark.parametrize("world", [2, 3])
def test_a_fused_call_is_the_sum_the_residual_and_the_norm(world: int, device: str) -> None:
    run_ranks(world, served, device=device)


def refuses(me: Rank) -> None:
    adapter = adapter_of(me)
    x, residual, weight = operands(me, 4)
    refused = [
        (x.float(), residual, weight),
        (x, residual.float(), weight),
        (x, residual, weight.float()),
        (x.double(), residual.double(), weight.double()),
        (x.t().contiguous().t(), residual, weight),
        (x, residual.t().contiguous().t(), weight),
        (x, residual[:2], weight),
        (x, residual, weight[:8]),
        (x, residual, weight[None]),
        (x[None], residual[None], weight),
        (x[:0], residual[:0], weight),
        (x[:, :9].contiguous(), residual[:, :9].contiguous(), weight[:9]),  # no whole packs
        (torch.zeros(129, HIDDEN, dtype=x.dtype), torch.zeros(129, HIDDEN, dtype=x.dtype), weight),  # over max_bytes
        tuple(tensor.to("meta") for tensor in (x, residual, weight)),
    ]
    assert [adapter.should_fuse(*tensors) for tensors in refused] == [False] * len(refused)
    largest = torch.zeros(128, HIDDEN, dtype=x.dtype)
    assert adapter.should_fuse(largest, largest, weight)
    for name, value in (("disabled", True), ("fuses", False)):
        setattr(adapter, name, value)
        assert not adapter.should_fuse(x, residual, weight)
        setattr(adapter, name, not value)
    adapter.close()
    assert not adapter.should_fuse(x, residual, weight)
    assert adapter.fused == adapter.served == 0


def test_what_is_not_served_is_refused_before_anything_happens() -> None:
    run_ranks(2, refuses)


def reasons(me: Rank) -> list[str | None]:
    told = []
    for fused, every_size in ((None, False), (False, False), (True, True), (True, False)):
        adapter = adapter_of(me, settings=dataclasses.replace(SETTINGS, fused=fused), every_size=every_size)
        told.append(adapter.fusing.why_not())
        assert adapter.should_fuse(*operands(me, 4)) == (told[-1] is None)
    with me.communicator(transport="pull") as pulls:
        told.append(Fusing(pulls, "tp:0", True, False).why_not())
    return told


def test_what_is_not_fused_has_a_reason() -> None:
    first, second = run_ranks(2, reasons)
    assert first == second
    default, off, deterministic, on, pulls = first
    assert "that is for GPUs" in default and "PCIE_ALLREDUCE_FUSED=1" in default
    assert off == "PCIE_ALLREDUCE_FUSED is 0"
    assert "must not depend on its size" in deterministic
    assert on is None
    assert pulls == "transport pull cannot"


def rows_with_a_gap(me: Rank) -> list[str]:
    """Where three rows are faster through the fallback, more are not fused either: one number is the answer."""
    with logged("pcie_allreduce.integrations.fusing") as lines:
        adapter = adapter_of(me)
        adapter.communicator.replan((Step(2, 2 * HIDDEN * 2), Step(2, 3 * HIDDEN * 2, fallback=True), Step(2, 1 << 20)))
        tensors = [operands(me, rows) for rows in (1, 2, 3, 4)]
        assert [adapter.should_fuse(*each) for each in tensors] == [True, True, False, False]
    dist.barrier()
    return lines


def test_rows_are_fused_up_to_a_number_which_the_log_tells_once() -> None:
    assert run_ranks(2, rows_with_a_gap) == [["pcie-allreduce: group tp:0 fuses up to 2 rows of 256 bfloat16"], []]


def traced(me: Rank) -> list[list[str]]:
    """The number of rows is a symbol to Dynamo. Returns the operators of each graph that has any."""
    adapter = adapter_of(me)
    counter = CompileCounterWithBackend("aot_eager")
    weight = torch.nn.Parameter(operands(me, 1)[2], requires_grad=False)

    def layer(x: torch.Tensor, residual: torch.Tensor) -> Results:
        if adapter.should_fuse(x, residual, weight):
            return adapter.fused_allreduce_rmsnorm(x, residual, weight, EPS)
        return x + 1, residual

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for rows in (4, 5, 6, 7):
        judge(me, compiled(*operands(me, rows)[:2]), rows)
    for rows in (129, 130, 131):
        x, residual, _ = operands(me, rows)
        assert torch.equal(compiled(x, residual)[0], x + 1)
    assert adapter.communicator.calls == 4
    dist.barrier()
    torch._dynamo.reset()
    graphs = [
        [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] for graph in counter.graphs
    ]
    return [[name for name in names if "getitem" not in name] for names in graphs if names]


def test_dynamo_traces_it_once_where_it_is_fused_and_once_where_not(device: str) -> None:
    for fused, other in run_ranks(2, traced, device=device, timeout=180):
        assert fused == ["pcie_allreduce.all_reduce_add_rms_norm.default"]
        assert len(other) == 1 and "add" in other[0]


def left_alone(me: Rank) -> list[str]:
    faults: list[str] = []
    quick = dataclasses.replace(SETTINGS, timeout=5.0, warmup_timeout=5.0)
    adapter = adapter_of(me, settings=quick, on_fault=lambda error: faults.append(str(error)))
    adapter.fused_allreduce_rmsnorm(*operands(me, 4), EPS)
    me.tell("ready")
    if me.rank == 1:
        time.sleep(600)
    for _ in range(2):  # and again: what a communicator has reported, it goes on to report
        assert adapter.should_fuse(*operands(me, 4))  # as ranks must agree, a fault does not change the answer
        with pytest.raises(pcie_allreduce.AllReduceTimeout):
            adapter.fused_allreduce_rmsnorm(*operands(me, 4), EPS)
    return faults


def test_a_fault_in_a_fused_call_is_told_as_any_other() -> None:
    with start_ranks(2, left_alone) as pool:
        pool.await_told("ready")
        pool.kill(1, signal.SIGKILL)
        outcome = pool.collect(20.0)[0]
    assert outcome.kind == "returned", outcome.text
    assert len(outcome.value) == 1
    assert "the process of rank 1 has ended" in outcome.value[0]


def replayed(me: Rank) -> None:
    """Fused and plain calls in one graph, captured on one stream and replayed on another."""
    adapter = adapter_of(me)
    tensors = operands(me, 4)
    side, serving = torch.cuda.Stream(), torch.cuda.Stream()

    def layers() -> tuple[torch.Tensor, ...]:
        normed, total = adapter.fused_allreduce_rmsnorm(*tensors, EPS)
        return normed, total, adapter.custom_all_reduce(tensors[0])

    assert adapter.should_fuse(*tensors)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), adapter.capture():
        layers()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            normed, total, plain = layers()
    torch.cuda.synchronize()
    dist.barrier()
    for turn in range(20):
        with torch.cuda.stream(serving):
            for tensor, value in zip(tensors, operands(me, 4, turn), strict=True):
                tensor.copy_(value)
            graph.replay()
            eager = adapter.fused_allreduce_rmsnorm(*tensors, EPS)
            judge(me, (normed, total), 4, turn)
            judge(me, eager, 4, turn)
            assert torch.equal(plain.cpu(), integers(me, 4, turn)[:-1].double().sum(0).to(plain.dtype))
    torch.cuda.synchronize()
    assert adapter.served_with_replays() == 2 * 21 + 20
    dist.barrier()


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 8])
def test_graphs_replay_fused_calls(world: int) -> None:
    run_ranks(world, replayed, device="cuda")


def test_an_engine_without_the_layers_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5.9 and 0.5.23 have them; of what is between, an old name with new arguments is not taken for the old thing."""

    def lacks(target: str, *arguments: str) -> str | None:
        return f"has no {target}" if target.startswith(sglang_fused.BOUNDARY) else None

    monkeypatch.setattr(seams, "lacks", lacks)
    monkeypatch.setattr(seams, "version", lambda name: "0.5.13")
    sglang_fused._hook_layers.cache_clear()
    try:
        told = sglang_fused._hook_layers()
    finally:
        sglang_fused._hook_layers.cache_clear()
    assert told is not None
    assert told.startswith(
        f"this SGLang (0.5.13) has no {sglang_fused.BOUNDARY}.fused_ffn_input, and has a later "
        f"{sglang_fused.COMMUNICATOR} than 0.5.9's; "
    )
