"""The adapter as an engine drives it on GPUs: graphs captured on one stream and replayed on another; needs no engine.

Ranks may share a GPU under the multi-process service; a machine with neither enough GPUs nor that skips.
"""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import forwards
import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run_ranks, start_ranks

from pcie_allreduce.integrations.adapter import EngineAllReduce
from pcie_allreduce.integrations.settings import Settings

SETTINGS = Settings(enabled=True, timeout=20.0, warmup_timeout=60.0)
VERIFY_LAYERS, DRAFT_LAYERS = 61, 1
ROWS = (4, 3, 2, 1)  # as captured by an engine: the largest first


def adapter_of(me: Rank, **options: Any) -> EngineAllReduce:
    options = {"settings": SETTINGS, "on_fault": lambda error: None, **options}
    return EngineAllReduce(me.group, torch.device(me.device), name="tp:0", **options)


def forward_of(me: Rank, rows: int, layers: int) -> forwards.Forward:
    return forwards.Forward(me.rank, me.world, rows, layers, torch.device(me.device))


def capture(
    adapter: EngineAllReduce, runs: list[forwards.Forward], stream: torch.cuda.Stream, pool: Any
) -> list[torch.cuda.CUDAGraph]:
    """One graph a forward, as SGLang does it: two warm-up runs behind a barrier, then the capture, all on `stream`."""
    graphs = []
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), adapter.capture():
        for forward in runs:
            for _ in range(2):
                torch.cuda.synchronize()
                dist.barrier()
                forward.run(adapter)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                forward.run(adapter)
            graphs.append(graph)
    torch.cuda.current_stream().wait_stream(stream)
    return graphs


def eager(me: Rank, layers: int) -> None:
    adapter = adapter_of(me)
    for turn, rows in enumerate((4, 1, 5, 2, 1)):
        forward = forward_of(me, rows, layers)
        forward.fill(turn)
        forward.run(adapter)
        assert torch.equal(forward.sums, forward.expected(turn))
    dist.barrier()


@pytest.mark.parametrize("world", [2, 3])
def test_forwards_without_graphs(world: int, device: str) -> None:
    run_ranks(world, eager, 3, device=device)


def graphs_in_turn(me: Rank, turns: int) -> None:
    adapter = adapter_of(me)
    side, serving = torch.cuda.Stream(), torch.cuda.Stream()
    pool = torch.cuda.graph_pool_handle()
    runs = [forward_of(me, rows, VERIFY_LAYERS) for rows in ROWS]
    graphs = capture(adapter, runs, side, pool)
    drafts = [forward_of(me, rows, DRAFT_LAYERS) for rows in ROWS]  # captured later, on the same object
    runs, graphs = runs + drafts, graphs + capture(adapter, drafts, side, pool)
    asked = adapter.served
    executed = 2 * sum(forward.calls for forward in runs)  # the warm-up; what is captured is not executed

    order = random.Random(7)  # the same on all ranks
    for turn in range(turns):
        which = order.randrange(len(runs))
        back_to_back = order.choice((1, 2, 3, 5))  # odd numbers of odd numbers of calls: all phases come up
        late = order.random() < 0.1
        if late and me.rank == turn % me.world:
            time.sleep(0.05)
        with torch.cuda.stream(serving):
            for repeat in range(back_to_back):
                runs[which].fill(turn * 10 + repeat)
                graphs[which].replay()
            executed += back_to_back * runs[which].calls
            got = runs[which].sums.clone()
            if late:  # a prefill between replays
                prefill = forward_of(me, 5, DRAFT_LAYERS)
                prefill.fill(turn)
                prefill.run(adapter)
                executed += prefill.calls
                assert torch.equal(prefill.sums, prefill.expected(turn)), f"prefill of turn {turn}"
            assert torch.equal(got, runs[which].expected(turn * 10 + back_to_back - 1)), f"turn {turn}, graph {which}"
    torch.cuda.synchronize()
    assert adapter.served - asked <= turns * (2 * DRAFT_LAYERS + 1)  # a replay passes no Python of ours
    assert adapter.served_with_replays() == executed
    adapter.communicator.check()
    dist.barrier()
    adapter.close()


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 8])
def test_graphs_of_verify_and_draft_replay_in_any_order(world: int) -> None:
    run_ranks(world, graphs_in_turn, 120, device="cuda", timeout=240.0)


def stops_replaying(me: Rank) -> tuple[list[str], float]:
    faults: list[tuple[str, float]] = []
    quick = dataclasses.replace(SETTINGS, timeout=2.0, warmup_timeout=2.0)
    adapter = adapter_of(me, settings=quick, on_fault=lambda error: faults.append((str(error), time.monotonic())))
    forward = forward_of(me, 4, DRAFT_LAYERS)
    [graph] = capture(adapter, [forward], torch.cuda.Stream(), None)
    graph.replay()
    torch.cuda.synchronize()
    me.tell("replayed")
    if me.rank == 1:
        time.sleep(10)
        return [], 0.0
    begun = time.monotonic()
    graph.replay()
    while not faults and time.monotonic() - begun < 30.0:
        time.sleep(0.01)  # as a process that only replays graphs: no call, no check
    return [text for text, _ in faults], faults[0][1] - begun if faults else 0.0


@pytest.mark.gpu
def test_a_rank_that_stops_replaying_is_named_by_the_watch() -> None:
    with start_ranks(2, stops_replaying, device="cuda") as pool:
        pool.await_told("replayed")
        outcome = pool.collect(60.0)[0]
    assert outcome.kind == "returned", outcome.text
    texts, seconds = outcome.value
    assert len(texts) == 1
    assert "rank 1" in texts[0]
    assert seconds < 2.0 + 1.0
