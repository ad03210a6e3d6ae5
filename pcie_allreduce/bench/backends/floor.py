"""The floor: one launch that copies the payload inside the GPU, one 16-byte pack per thread.

An all-reduce cannot be quicker than a launch that reads its input and writes its output, whatever lies between the
GPUs. Ratios to this floor carry over between machines better than microseconds do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from pcie_allreduce import _C
from pcie_allreduce.bench.backends.base import PACK, Seat


class Floor:
    name = "floor"
    transport = "none"
    in_place = False
    reduces = False
    zeros = staticmethod(torch.zeros)

    def __init__(self, seat: Seat) -> None:
        if seat.device.type != "cuda":
            raise ValueError(f"the floor is a GPU kernel; this rank has device {seat.device}")

    def algorithm(self, x: torch.Tensor) -> str:
        return "none"

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        nbytes = -(-source.nbytes // PACK) * PACK  # buffers are padded to whole packs
        stream = torch.cuda.current_stream().cuda_stream
        _C.copy_packs(output.data_ptr(), source.data_ptr(), nbytes, stream)

    def capture(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
