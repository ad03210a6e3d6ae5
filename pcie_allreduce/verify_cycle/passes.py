"""One pass over all layers with one joint, as a `Timed` of the benchmark: call by call, or as one CUDA graph.

The input lies where it is, and the last norm is copied to where it can be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pcie_allreduce.bench.procedure import Counts
from pcie_allreduce.verify_cycle.joints import Joint
from pcie_allreduce.verify_cycle.layers import DTYPE, Layer, attention, experts
from pcie_allreduce.verify_cycle.shape import Shape


@dataclass(frozen=True)
class Model:
    """The bank of layers, norm weights that are equal on all ranks, and this rank's part of the embedding."""

    shape: Shape
    bank: Sequence[Layer]
    norm: torch.Tensor
    embedding: torch.Tensor  # [most rows, hidden]


class EagerPass:
    def __init__(self, model: Model, joint: Joint, rows: int, warmup: int) -> None:
        self._model, self._joint = model, joint
        self._embedding = model.embedding[:rows]
        self.output = torch.full_like(self._embedding, torch.nan)
        for _ in range(warmup):
            self.run()

    def run(self) -> None:
        model, join = self._model, self._joint.join
        residual = torch.zeros_like(self._embedding)
        x = join(self._embedding.clone(), residual, model.norm)
        for number in range(model.shape.layers):
            layer = model.bank[number % len(model.bank)]
            x = join(attention(layer, x, model.shape), residual, model.norm)
            x = join(experts(layer, x, model.shape), residual, model.norm)
        self.output.copy_(x)

    def restore(self) -> None:
        pass

    lead_in = calls = run

    def close(self) -> None:
        pass


class GraphPass:
    def __init__(self, model: Model, joint: Joint, rows: int, warmup: int) -> None:
        eager = EagerPass(model, joint, rows, warmup)
        self.output = eager.output
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        torch.cuda.synchronize()
        mode = "thread_local"  # NCCL's watchdog may use CUDA meanwhile
        with joint.capture(), torch.cuda.graph(self._graph, stream=stream, capture_error_mode=mode):
            eager.run()

    def restore(self) -> None:
        pass

    def lead_in(self) -> None:
        self._graph.replay()

    calls = lead_in

    def close(self) -> None:
        torch.cuda.synchronize()
        self._graph.reset()


def make_pass(model: Model, joint: Joint, rows: int, warmup: int) -> EagerPass | GraphPass:
    kind = GraphPass if model.embedding.is_cuda else EagerPass
    return kind(model, joint, rows, warmup)


def counts_for(device: str) -> Counts:
    """One pass is one call: a pass is as long as a hundred calls."""
    return Counts(calls=1, lead_in=1, replays=20 if device == "cuda" else 3, warmup=2)


def embedding(rows: int, hidden: int, rank: int, world: int, device: torch.device) -> torch.Tensor:
    """Each token's row is on the rank that has its part of the vocabulary, and zero elsewhere."""
    generator = torch.Generator().manual_seed(7)
    whole = torch.randn(rows, hidden, generator=generator)
    mine = (torch.arange(rows) % world == rank).unsqueeze(1)
    return (whole * mine).to(DTYPE).to(device)
