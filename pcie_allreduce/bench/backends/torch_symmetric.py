"""torch's all-reduces over symmetric memory, without NVLink multicast (the catalogue's environment switches it off).

They sum what lies in symmetric memory. A model can have its tensors there, so the benchmark has its buffers there and
no copy is timed: one-shot goes from such a tensor to any other, two-shot sums it where it lies. Engines that copy into
a buffer of their own, as vLLM and SGLang do, pay for that on top.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from pcie_allreduce.bench.backends.base import Seat, Unavailable

OPS = {"one_shot": "one_shot_all_reduce_out", "two_shot": "two_shot_all_reduce_"}
ALIGNED = 4  # bytes of which torch wants whole ones


class TorchSymmetric:
    name = "torch-symm-mem"
    transport = "peer"
    reduces = True

    def __init__(self, seat: Seat, algorithm: str) -> None:
        reason = next(filter(None, seat.gather(_why_not(seat, algorithm))), None)
        if reason is not None:
            raise Unavailable(reason)
        self.in_place = algorithm == "two_shot"
        self._algorithm = algorithm
        self._group = seat.gloo.group_name
        self._op = getattr(torch.ops.symm_mem, OPS[algorithm])

    def algorithm(self, x: torch.Tensor) -> str:
        return self._algorithm

    def zeros(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        import torch.distributed._symmetric_memory as symmetric

        buffer = symmetric.empty(size, dtype=dtype, device=device)
        symmetric.rendezvous(buffer, self._group)
        return buffer.zero_()

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        if self.in_place:
            self._op(_aligned(output), "sum", self._group)
        else:
            self._op(_aligned(source), "sum", self._group, _aligned(output))

    def capture(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def _why_not(seat: Seat, algorithm: str) -> str | None:
    """What this rank lacks. Without P2P torch's own rendezvous would end in an error of the driver."""
    if seat.device.type != "cuda":
        return "needs GPUs"
    try:
        import torch.distributed._symmetric_memory
    except ImportError:
        return f"torch {torch.__version__} has no symmetric memory"
    if not hasattr(torch.ops.symm_mem, OPS[algorithm]):
        return f"torch {torch.__version__} has no symm_mem.{OPS[algorithm]}"
    peers = (index for index in range(seat.world) if index != seat.device.index)
    closed = [peer for peer in peers if not torch.cuda.can_device_access_peer(seat.device.index, peer)]
    if closed:
        return f"GPU {seat.device.index} has no P2P with GPU(s) {', '.join(map(str, closed))}"
    return None


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """With the element behind it, where that is missing: buffers are padded to whole packs."""
    missing = -x.nbytes % ALIGNED // x.itemsize
    return x.as_strided((x.numel() + missing,), (1,)) if missing else x
