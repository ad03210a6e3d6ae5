"""The timed unit: who is given copies, which buffers are used, and the same on a CUDA graph."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from pcie_allreduce.bench.execution import EagerRun, GraphRun, make_pairs
from pcie_allreduce.bench.procedure import Counts

COUNTS = Counts(calls=10, lead_in=3, replays=2, warmup=5)


class Doubling:
    """What one rank sees of an all-reduce with a twin: every element twice."""

    name, transport, reduces = "doubling", "none", True
    zeros = staticmethod(torch.zeros)

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.outputs: list[int] = []

    def algorithm(self, x: torch.Tensor) -> str:
        return "none"

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        self.outputs.append(output.data_ptr())
        torch.mul(output if self.in_place else source, 2, out=output)

    def capture(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("in_place", [True, False])
def test_each_pair_is_reduced_from_its_source(in_place: bool) -> None:
    backend = Doubling(in_place)
    pairs = make_pairs(4, 100, torch.float32, torch.device("cpu"))
    run = EagerRun(backend, pairs, COUNTS)
    run.calls()
    for index, pair in enumerate(pairs):
        pair.source.fill_(index + 1.0)
        pair.output.fill_(torch.nan)
    run.restore()
    run.each_pair()
    for index, pair in enumerate(pairs):
        assert (pair.output == 2.0 * (index + 1)).all()
        assert (pair.source == index + 1.0).all()


def test_counts_are_kept_and_buffers_take_turns() -> None:
    backend = Doubling(in_place=False)
    pairs = make_pairs(4, 8, torch.bfloat16, torch.device("cpu"))
    outputs = [pair.output.data_ptr() for pair in pairs]
    run = EagerRun(backend, pairs, COUNTS)
    assert len(backend.outputs) == COUNTS.warmup
    backend.outputs.clear()
    run.lead_in()
    run.calls()
    assert len(backend.outputs) == COUNTS.lead_in + COUNTS.calls
    assert backend.outputs[COUNTS.lead_in :] == [outputs[i % 4] for i in range(COUNTS.calls)]


@pytest.mark.parametrize("elements", [1, 7, 8, 9, 7168])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_buffers_end_with_a_whole_pack(elements: int, dtype: torch.dtype) -> None:
    for pair in make_pairs(2, elements, dtype, torch.device("cpu")):
        for buffer in pair:
            assert buffer.shape == (elements,)
            assert buffer.untyped_storage().nbytes() % 16 == 0
            assert buffer.untyped_storage().nbytes() - buffer.nbytes < 16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("in_place", [True, False])
def test_a_graph_is_checked_in_the_buffers_it_was_captured_with(in_place: bool) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        pairs = make_pairs(4, 1000, torch.float32, torch.device("cuda"))
        run = GraphRun(Doubling(in_place), pairs, COUNTS)
        run.lead_in()
        run.calls()
        for index, pair in enumerate(pairs):
            pair.source.fill_(index + 1.0)
            pair.output.fill_(torch.nan)
        run.restore()
        run.each_pair()
        assert [pair.output.unique().tolist() for pair in pairs] == [[2.0], [4.0], [6.0], [8.0]]
        run.close()
