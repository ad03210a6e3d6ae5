"""Which all-reduces of an engine's group are fused with the residual and RMSNorm behind them.

Engines ask while torch.compile traces them, with the number of rows a symbol. So the answer is one number for each
length of a row: up to so many rows are fused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from ..transport import DTYPE_CODES
from .settings import FUSED

if TYPE_CHECKING:
    from ..communicator import Communicator

logger = logging.getLogger(__name__)


class Fusing:
    """Answers for one group, the same on all of its ranks.

    Args:
        communicator: the group's.
        name: how the log calls the group.
        wanted: True, False, or None for GPUs alone.
        every_size: whether larger tensors are served, too, as sums of the same order.
    """

    def __init__(self, communicator: Communicator, name: str, wanted: bool | None, every_size: bool) -> None:
        self._comm = communicator
        self._name = name
        self._wanted = wanted
        self._every_size = every_size
        self._most: dict[tuple[int, torch.dtype], int] = {}

    def why_not(self) -> str | None:
        """Why nothing is fused; None where something is."""
        if self._wanted is False:
            return f"{FUSED} is 0"
        if self._wanted is None and self._comm.device.type == "cpu":
            return f"that is for GPUs ({FUSED}=1 does it on CPU ranks, too)"
        if self._every_size:
            return "a sum must not depend on its size, and large ones cannot be fused"
        if not self._comm.supports_fused(torch.empty(1, 1024, dtype=torch.bfloat16, device=self._comm.device)):
            return f"transport {self._comm.transport} cannot"
        return None

    def serves(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> bool:
        """Of shapes, dtypes, devices and contiguity alone."""
        return (
            x.dim() == 2
            and x.dtype in DTYPE_CODES
            and residual.shape == x.shape
            and weight.shape == x.shape[1:]
            and residual.dtype == x.dtype
            and weight.dtype == x.dtype
            and x.device == self._comm.device
            and residual.device == x.device
            and weight.device == x.device
            and x.is_contiguous()
            and residual.is_contiguous()
            and weight.is_contiguous()
            and x.shape[0] > 0
            and x.shape[0] <= self._most_rows(weight.shape[0], x.dtype)  # a parameter's shape is never a symbol
        )

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
    def _most_rows(self, hidden: int, dtype: torch.dtype) -> int:
        key = (hidden, dtype)
        if key not in self._most:
            shape = (self._comm.max_bytes // max(1, hidden * dtype.itemsize), hidden)
            room = torch.empty(shape, dtype=dtype, device=self._comm.device)
            refused = (rows for rows in range(1, len(room) + 1) if not self._comm.supports_fused(room[:rows]))
            self._most[key] = next(refused, len(room) + 1) - 1
            if self._comm.rank == 0:
                logger.info(
                    "pcie-allreduce: group %s fuses up to %d rows of %d %s",
                    self._name, self._most[key], hidden, str(dtype).removeprefix("torch."),
                )  # fmt: skip
        return self._most[key]
