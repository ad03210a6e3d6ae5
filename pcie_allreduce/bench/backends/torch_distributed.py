"""torch.distributed's all-reduce, as an engine calls it: in place, synchronous, on a group made once."""

from __future__ import annotations

import datetime
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist

from pcie_allreduce.bench.backends.base import Seat

GROUP_TIMEOUT = datetime.timedelta(seconds=120)


class TorchDistributed:
    in_place = True
    reduces = True
    zeros = staticmethod(torch.zeros)

    def __init__(self, name: str, transport: str, group: dist.ProcessGroup, owned: bool) -> None:
        self.name = name
        self.transport = transport
        self.group = group
        self._owned = owned

    def algorithm(self, x: torch.Tensor) -> str:
        return "none"

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        dist.all_reduce(output, group=self.group)

    def capture(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        pass

    def close(self) -> None:
        if self._owned:
            dist.destroy_process_group(self.group)


def gloo(seat: Seat) -> TorchDistributed:
    """The group that the ranks met through: the one a program on CPU ranks would use."""
    return TorchDistributed("gloo", "cpu", seat.gloo, owned=False)


def nccl(seat: Seat, name: str) -> TorchDistributed:
    """A new NCCL group. Only without P2P is it known which way NCCL goes: through host memory."""
    torch.cuda.set_device(seat.device)
    group = dist.new_group(backend="nccl", timeout=GROUP_TIMEOUT)
    return TorchDistributed(name, "host" if name == "nccl-p2p-off" else "none", group, owned=True)
