"""CUDA graphs: captured with no preparation and replayed with no Python, so epoch and order live on the GPU alone."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import DTYPES, SHORT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.gpu
worlds = pytest.mark.parametrize("world", [2, 3, 8])
LAYERS = 122  # all-reduces of one verify pass of the workload


class Captured:
    """A graph of `calls` all-reduces in a chain of dependent kernels: x = a * b; y = sum over ranks of x; z = y + 1.

    The sum of a call goes, reduced again to small integers, into the next, so that one wrong call shows at the end.
    """

    def __init__(self, comm: Any, me: Rank, elements: int, dtype: torch.dtype, calls: int) -> None:
        self.me, self.calls = me, calls
        self.a = torch.zeros(elements, dtype=dtype, device=me.device)
        self.b = torch.ones(elements, dtype=dtype, device=me.device)
        self.sums: list[torch.Tensor] = []
        self.graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(self.graph):
            carried = self.a
            for _ in range(calls):
                y = comm.all_reduce(carried * self.b)
                z = y + 1
                self.sums.append(z)
                carried = torch.where(z > 8 * me.world, self.a, z - y + self.a)

    def expected(self, pattern: torch.Tensor, scale: int) -> list[torch.Tensor]:
        """The same chain on the CPU, in integers."""
        own = [pattern + rank for rank in range(self.me.world)]
        carried, results = own, []
        for _ in range(self.calls):
            y = sum((part * scale for part in carried), torch.zeros_like(pattern))
            z = y + 1
            results.append(z)
            carried = [torch.where(z > 8 * self.me.world, part, part + 1) for part in own]
        return results

    def fill(self, pattern: torch.Tensor, scale: int) -> None:
        self.a.copy_((pattern + self.me.rank).to(self.a.dtype))
        self.b.fill_(scale)

    def check(self, pattern: torch.Tensor, scale: int, what: str) -> None:
        torch.cuda.synchronize()
        for call, (got, expected) in enumerate(zip(self.sums, self.expected(pattern, scale), strict=True)):
            wrong = int((got.cpu() != expected.to(got.dtype)).sum())
            assert wrong == 0, f"{what}: call {call} of {self.calls}: {wrong} of {got.numel()} elements are wrong"


def pattern_of(elements: int, turn: int) -> torch.Tensor:
    return (torch.arange(elements) + turn) % 5


def replay_and_check(graph: Captured, turns: Sequence[int]) -> None:
    elements = graph.a.numel()
    for turn in turns:
        scale = 1 + turn % 2
        graph.fill(pattern_of(elements, turn), scale)
        for out in graph.sums:
            out.fill_(float("nan"))
        graph.graph.replay()
        graph.check(pattern_of(elements, turn), scale, f"replay {turn}")


def chain(me: Rank, dtype: torch.dtype, elements: int, calls: int, replays: int) -> None:
    with me.communicator(max_bytes=1 << 17) as comm:
        graph = Captured(comm, me, elements, dtype, calls)
        assert comm.calls == calls, "a capture counts its calls once"
        replay_and_check(graph, range(replays))
        assert comm.calls == calls
        comm.check()


@worlds
@pytest.mark.parametrize("dtype", DTYPES, ids=SHORT.get)
@pytest.mark.parametrize("calls", [1, 2, 3, 5])
def test_replays_with_changing_inputs_are_exact(world: int, dtype: torch.dtype, calls: int) -> None:
    run_ranks(world, chain, dtype, 7168, calls, 40, device="cuda")


@worlds
@pytest.mark.parametrize("elements", [1, 9, 7168, 21504])
def test_a_graph_of_a_whole_verify_pass(world: int, elements: int) -> None:
    run_ranks(world, chain, torch.bfloat16, elements, LAYERS, 9, device="cuda")


def back_to_back(me: Rank, replays: int) -> None:
    """No synchronisation between replays: an accumulator inside the graph counts every one of them exactly."""
    with me.communicator(max_bytes=1 << 17) as comm:
        x = torch.full((7168,), float(me.rank), device=me.device)
        total = torch.zeros(7168, device=me.device)
        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            for _ in range(3):
                total.add_(comm.all_reduce(x))
            x.add_(1.0)
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        ranks = me.world * (me.world - 1) // 2
        expected = 3 * sum(ranks + me.world * turn for turn in range(replays))
        assert bool((total == expected).all()), f"{total[:3].tolist()}, expected {expected}"


@worlds
def test_replays_back_to_back_are_exact(world: int) -> None:
    run_ranks(world, back_to_back, 101, device="cuda")  # expected sums stay below 2^24 up to eight ranks


def several_graphs(me: Rank, order: Sequence[int]) -> None:
    """Graphs of other sizes, counts and types over one communicator, in changing order, with eager calls between."""
    with me.communicator(max_bytes=1 << 17) as comm:
        graphs = [
            Captured(comm, me, 21504, torch.bfloat16, 3),
            Captured(comm, me, 100, torch.float16, 1),
            Captured(comm, me, 28675, torch.float32, 2),
            Captured(comm, me, 8, torch.bfloat16, 5),
        ]
        for turn, which in enumerate(order):
            replay_and_check(graphs[which], [turn])
            if turn % 3 == 0:
                x = torch.full((1 + 997 * (turn % 5),), float(me.rank), dtype=torch.float16, device=me.device)
                assert bool((comm.all_reduce(x) == me.world * (me.world - 1) // 2).all()), f"eager call {turn}"
        comm.check()


@worlds
def test_graphs_of_other_sizes_in_changing_order(world: int) -> None:
    order = [0, 1, 0, 2, 3, 3, 1, 2, 0, 3, 2, 1, 1, 1, 0, 0, 2, 2, 2, 3, 0, 1, 3, 0]
    run_ranks(world, several_graphs, order, device="cuda")


def late_in_replay(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 17) as comm:
        graph = Captured(comm, me, 7168, torch.bfloat16, 3)
        for turn in range(2 * me.world):
            if turn % me.world == me.rank:
                time.sleep(0.2)
            replay_and_check(graph, [turn])


@worlds
def test_a_rank_late_in_a_replay_is_awaited(world: int) -> None:
    run_ranks(world, late_in_replay, device="cuda")


def slow() -> None:
    torch.cuda._sleep(20_000_000)  # about 10 ms of this GPU's clock


def streams_in_turn(me: Rank) -> None:
    """The communicator orders a changed stream behind its last one; the test orders only its own tensors."""
    with me.communicator(max_bytes=1 << 17) as comm:
        streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        results = []
        for turn in range(30):
            stream = streams[(turn * turn) % 3]
            with torch.cuda.stream(stream):
                if turn % 7 == me.rank % 7:
                    slow()
                x = torch.full((7168 if turn % 2 else 50,), float(me.rank + turn), device=me.device)
                results.append((turn, stream, comm.all_reduce(x)))
        torch.cuda.synchronize()
        for turn, _, result in results:
            assert bool((result == me.world * turn + me.world * (me.world - 1) // 2).all()), f"turn {turn}"
        graph = Captured(comm, me, 4096, torch.float32, 2)
        for turn, stream in enumerate(streams[1:]):
            graph.fill(pattern_of(4096, turn), 1)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                graph.graph.replay()
            stream.synchronize()
            graph.check(pattern_of(4096, turn), 1, f"stream {turn}")
        comm.check()


@worlds
def test_a_changed_stream_is_ordered_behind_the_last(world: int) -> None:
    run_ranks(world, streams_in_turn, device="cuda")


def no_host_synchronisation(me: Rank) -> float:
    """A call returns while the GPU is still busy with what came before it."""
    with me.communicator(max_bytes=1 << 17) as comm:
        x = torch.ones(7168, device=me.device)
        comm.all_reduce(x)
        torch.cuda.synchronize()
        me.meet()
        for _ in range(20):
            slow()
        begun = time.monotonic()
        comm.all_reduce(x, out=x)
        returned = time.monotonic() - begun
        torch.cuda.synchronize()
        finished = time.monotonic() - begun
        assert bool((x == me.world).all())
        return returned / finished


def test_an_eager_call_does_not_synchronise_the_host() -> None:
    assert max(run_ranks(2, no_host_synchronisation, device="cuda")) < 0.5


def in_place_in_graph(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 17) as comm:
        x = torch.zeros(5000, dtype=torch.float16, device=me.device)
        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            comm.all_reduce(x, out=x)
            comm.all_reduce(x, out=x)
        for turn in range(15):
            x.fill_(float(me.rank + turn))
            graph.replay()
            torch.cuda.synchronize()
            expected = me.world * (me.world * turn + me.world * (me.world - 1) // 2)
            assert bool((x == expected).all()), f"replay {turn}"


@worlds
def test_in_place_in_a_graph(world: int) -> None:
    run_ranks(world, in_place_in_graph, device="cuda")


def compiled_in_graph(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 17) as comm:
        body: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
            lambda x: comm.all_reduce(x * 2) + 1, fullgraph=True, backend="aot_eager"
        )
        x = torch.full((7168,), float(me.rank), dtype=torch.bfloat16, device=me.device)
        body(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            y = body(x)
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        assert bool((y == me.world * (me.world - 1) + 1).all())


def test_a_compiled_function_is_captured() -> None:
    run_ranks(2, compiled_in_graph, device="cuda", timeout=180)


def missing_in_replay(me: Rank, timeout: float) -> tuple[str, tuple[int, ...], bool, bool]:
    """Rank 1 stops replaying. The others get NaN from that replay on, never the last replay's values."""
    from pcie_allreduce import AllReduceTimeout

    comm = me.communicator(max_bytes=1 << 16, timeout=timeout, warmup_timeout=timeout)
    x = torch.full((7168,), 1.0, device=me.device)
    graph = torch.cuda.CUDAGraph()
    with comm.capture(), torch.cuda.graph(graph):
        y = comm.all_reduce(x)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == me.world).all())
    me.meet()
    message, missing, first, later = "", (), True, True
    if me.rank != 1:
        graph.replay()
        torch.cuda.synchronize()
        first = bool(y.isnan().all())
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        later = bool(y.isnan().all())
        with pytest.raises(AllReduceTimeout) as caught:
            comm.check()
        message, missing = str(caught.value), caught.value.missing
    me.meet()
    comm.close()
    return message, missing, first, later


@worlds
def test_a_rank_missing_in_a_replay_gives_nan_and_is_named(world: int) -> None:
    for rank, (message, missing, first, later) in enumerate(
        run_ranks(world, missing_in_replay, 2.0, device="cuda", timeout=120)
    ):
        if rank != 1:
            assert first, "a failed replay must give NaN, and so must every later one"
            assert later, "a failed replay must give NaN, and so must every later one"
            assert missing == (1,), message
            assert "rank 1" in message, message


def goes_meanwhile(me: Rank, state: str) -> None:
    """Python collects when it likes."""
    with me.communicator(max_bytes=4096) as comm:
        other = None if state == "nobody" else me.communicator(max_bytes=4096)
        if state == "closed" and other is not None:
            other.close()
        x = torch.full((64,), float(me.rank + 1), device=me.device)
        graph = torch.cuda.CUDAGraph()
        gc.collect()  # what earlier tests left, graphs of torch among it
        with comm.capture(), torch.cuda.graph(graph):
            out = comm.all_reduce(x)
            other = None
            gc.collect()
            out = comm.all_reduce(out)
        graph.replay()
        torch.cuda.synchronize()
        comm.check()
        assert float(out[0]) == me.world * sum(range(1, me.world + 1))


@pytest.mark.parametrize("state", ["nobody", "closed", "dropped"])
def test_a_communicator_that_goes_during_a_capture_does_not_spoil_it(state: str) -> None:
    run_ranks(2, goes_meanwhile, state, device="cuda")
