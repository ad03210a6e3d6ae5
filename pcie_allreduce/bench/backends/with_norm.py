"""All-reduce, residual and RMSNorm: ours in one step, and any all-reduce with a norm behind it.

The residual is zero, so that what is judged as a sum is the new residual. The norm of it is compared here with torch's
float32, whenever the backend is asked what its launches reported.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from pcie_allreduce.bench.backends.base import Backend
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.errors import PcieAllReduceError
from pcie_allreduce.fused import FusedCall, add_rms_norm

EPS = 1e-6
CLOSE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 1e-5}  # relative: one unit at least


class WrongNorm(PcieAllReduceError):
    """Rows that were timed are not normalised right."""


class _WithNorm:
    """Buffers are made by the first launch of each output, which is never a captured one."""

    reduces = True

    def __init__(self, name: str, backend: Backend, hidden: int) -> None:
        self.name = name
        self.transport = backend.transport
        self.in_place = backend.in_place
        self.zeros = backend.zeros
        self._backend = backend
        self._hidden = hidden
        self._calls: dict[tuple[int, int], FusedCall] = {}

    def capture(self) -> AbstractContextManager[None]:
        return self._backend.capture()

    def close(self) -> None:
        self._backend.close()

    def _call(self, source: torch.Tensor, output: torch.Tensor) -> FusedCall:
        key = source.data_ptr(), output.data_ptr()
        if key not in self._calls:
            x, into = (tensor.view(-1, self._hidden) for tensor in (source, output))
            generator = torch.Generator().manual_seed(1)
            weight = torch.rand(self._hidden, generator=generator).add_(0.5).to(x.dtype).to(x.device)
            self._calls[key] = FusedCall(x, torch.zeros_like(x), weight, EPS, 0.0, torch.zeros_like(x), into)
        return self._calls[key]

    def check(self) -> None:
        self._backend.check()
        for call in self._calls.values():
            values = call.residual_out.float()
            scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPS)
            expected = values * scale * call.weight.float()
            if not torch.allclose(call.normed.float(), expected, rtol=CLOSE[call.x.dtype], atol=1e-6, equal_nan=True):
                raise WrongNorm(f"{call.rows} rows of {call.hidden} are not normalised right by {self.name}")


class Fused(_WithNorm):
    """Ours, in one step."""

    def __init__(self, ours: Ours, hidden: int) -> None:
        super().__init__(ours.name, ours, hidden)
        self._comm = ours.communicator

    def algorithm(self, x: torch.Tensor) -> str:
        plan = self._comm.fused_plan_for(x.view(-1, self._hidden))
        return "none" if plan is None else plan.algorithm

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        call = self._call(source, output)
        self._comm.all_reduce_add_rms_norm(
            call.x, call.residual, call.weight, EPS, out=call.normed, residual_out=call.residual_out
        )


class Behind(_WithNorm):
    """Any all-reduce, and one kernel behind it."""

    def __init__(self, backend: Backend, hidden: int) -> None:
        super().__init__(f"{backend.name}+norm", backend, hidden)

    def algorithm(self, x: torch.Tensor) -> str:
        return self._backend.algorithm(x)

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        self._backend.launch(source, output)
        call = self._call(source, output)
        add_rms_norm(call.residual_out, call)  # which are the output, as rows
