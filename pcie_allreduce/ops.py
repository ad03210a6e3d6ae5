"""torch.library operators, so that torch.compile and CUDA graphs see one opaque node.

Dynamo cannot trace into the extension module. An operator takes the communicator as an integer key; the communicator
itself stays out of the graph.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

import torch

from . import fp8

if TYPE_CHECKING:
    from .communicator import Communicator

_communicators: weakref.WeakValueDictionary[int, Communicator] = weakref.WeakValueDictionary()
_keys = itertools.count(1)


def register(communicator: Communicator) -> int:
    """The key by which the operators find the communicator while it lives."""
    key = next(_keys)
    _communicators[key] = communicator
    return key


def _find(key: int) -> Communicator:
    communicator = _communicators.get(int(key))  # a symbol, while shapes are worked out for dynamic ones
    if communicator is None:
        raise RuntimeError(f"the communicator of compiled code (key {key}) no longer exists; compile again")
    return communicator


@torch.library.custom_op("pcie_allreduce::all_reduce", mutates_args=())
def all_reduce(x: torch.Tensor, communicator: int) -> torch.Tensor:
    """The sum over all ranks of x, as a new tensor of the same shape, dtype and device."""
    return _find(communicator).all_reduce(x)


@all_reduce.register_fake
def _(x: torch.Tensor, communicator: int) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("pcie_allreduce::all_reduce_out", mutates_args=("out",))
def all_reduce_out(x: torch.Tensor, out: torch.Tensor, communicator: int) -> None:
    """The sum over all ranks of x, written to out (same shape, dtype and device)."""
    _find(communicator).all_reduce(x, out=out)


@torch.library.custom_op("pcie_allreduce::reduce_scatter", mutates_args=())
def reduce_scatter(x: torch.Tensor, communicator: int) -> torch.Tensor:
    """This rank's chunk of the sum over all ranks of x (world_size * n, ...), as a new tensor (n, ...)."""
    return _find(communicator).reduce_scatter(x)


@reduce_scatter.register_fake
def _(x: torch.Tensor, communicator: int) -> torch.Tensor:
    return x.new_empty((x.shape[0] // _find(communicator).world_size, *x.shape[1:]))


@torch.library.custom_op("pcie_allreduce::all_gather", mutates_args=())
def all_gather(x: torch.Tensor, communicator: int) -> torch.Tensor:
    """The chunks x (n, ...) of all ranks, as a new tensor (world_size * n, ...)."""
    return _find(communicator).all_gather(x)


@all_gather.register_fake
def _(x: torch.Tensor, communicator: int) -> torch.Tensor:
    return x.new_empty((_find(communicator).world_size * x.shape[0], *x.shape[1:]))


@torch.library.custom_op("pcie_allreduce::all_reduce_add_rms_norm", mutates_args=())
def all_reduce_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, weight_bias: float, communicator: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, residual + the sum over all ranks of x), as new tensors of x's shape, dtype and device."""
    return _find(communicator).all_reduce_add_rms_norm(x, residual, weight, eps, weight_bias=weight_bias)


@all_reduce_add_rms_norm.register_fake
def _(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, weight_bias: float, communicator: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(residual)


@torch.library.custom_op("pcie_allreduce::all_reduce_add_rms_norm_quant", mutates_args=())
def all_reduce_add_rms_norm_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_bias: float,
    scale: torch.Tensor | None,
    communicator: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(quantised by scale, nothing, the new residual), or without a scale (quantised by groups, their scales, the new
    residual), as new tensors."""
    results = _find(communicator).all_reduce_add_rms_norm_quant(
        x, residual, weight, eps, scale=scale, group_size=fp8.GROUP if scale is None else None, weight_bias=weight_bias
    )
    return results if scale is None else (results[0], scale.new_empty(0), results[2])


@all_reduce_add_rms_norm_quant.register_fake
def _(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_bias: float,
    scale: torch.Tensor | None,
    communicator: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups = (*x.shape[:-1], x.shape[-1] // fp8.GROUP) if scale is None else (0,)
    return (
        torch.empty_like(x, dtype=fp8.DTYPE, memory_format=torch.contiguous_format),
        x.new_empty(groups, dtype=torch.float32),
        torch.empty_like(residual),
    )


@torch.library.custom_op("pcie_allreduce::all_reduce_", mutates_args=("x",))
def all_reduce_(x: torch.Tensor, communicator: int) -> None:
    """The sum over all ranks of x, in place."""
    _find(communicator).all_reduce(x, out=x)
