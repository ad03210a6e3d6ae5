"""What a forward of a tensor parallel model does to its all-reduces, with exact integers in place of a model.

A forward of L layers makes 2 L + 1 calls, each of which needs the one before. Here each rank adds a number of its own
to a sum and keeps the remainder by 8, so that inputs differ between ranks and stay so small that bfloat16 holds every
sum of eight of them exactly; any wrong, late or repeated sum changes all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pcie_allreduce.integrations.adapter import EngineAllReduce

HIDDEN = 7168
MODULUS = 8


@dataclass
class Forward:
    """`rows` tokens through a model of `layers` layers, on static tensors, as a graph has them."""

    rank: int
    world: int
    rows: int
    layers: int
    device: torch.device
    hidden: int = HIDDEN
    calls: int = field(init=False)
    x: torch.Tensor = field(init=False)
    sums: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.calls = 2 * self.layers + 1
        shape = (self.rows, self.hidden)
        self.x = torch.zeros(shape, dtype=torch.bfloat16, device=self.device)
        self.sums = torch.zeros((self.calls, *shape), dtype=torch.bfloat16, device=self.device)

    def fill(self, turn: int) -> None:
        """The inputs of this rank in the given turn, in the stream that is current."""
        self.x.copy_(self._inputs(turn)[self.rank])

    def run(self, adapter: EngineAllReduce) -> None:
        value = self.x
        for call in range(self.calls):
            assert adapter.should_custom_ar(value)
            total = adapter.custom_all_reduce(value)
            self.sums[call].copy_(total)
            value = torch.remainder(total + self._own(call, self.rank), MODULUS)

    def expected(self, turn: int) -> torch.Tensor:
        """What `sums` must hold after a run: integers, without any all-reduce."""
        values = self._inputs(turn).to(torch.int64)
        own = torch.tensor([[self._own(call, rank) for rank in range(self.world)] for call in range(self.calls)])
        own = own.to(self.device)[:, :, None, None]
        totals = []
        for call in range(self.calls):
            total = values.sum(dim=0)
            totals.append(total)
            values = (total + own[call]) % MODULUS
        return torch.stack(totals).to(torch.bfloat16)

    def _inputs(self, turn: int) -> torch.Tensor:
        random = torch.Generator(self.device).manual_seed(1000 * turn + self.rows)
        shape = (self.world, self.rows, self.hidden)
        return torch.randint(0, MODULUS, shape, generator=random, device=self.device)

    @staticmethod
    def _own(call: int, rank: int) -> int:
        return (3 * call + 5 * rank) % MODULUS
