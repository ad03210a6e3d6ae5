"""Reduce-scatter and all-gather, as far as they are no kernel: shapes, memory, and who else can serve them.

A payload has a chunk for each rank, in rank order, along the first dimension, as in torch.distributed's
reduce_scatter_tensor and all_gather_into_tensor, which newer versions call by other names.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def scattered(x: torch.Tensor, out: torch.Tensor | None, world_size: int, rank: int) -> torch.Tensor:
    """Where this rank's chunk of the sum of x (world_size * n, ...) goes: out (n, ...), or a new tensor."""
    _require_tensor(x, "x")
    if x.dim() == 0 or x.shape[0] % world_size != 0:
        raise ValueError(
            f"x has the shape {tuple(x.shape)}; its first dimension must be a multiple of the {world_size} ranks"
        )
    shape = (x.shape[0] // world_size, *x.shape[1:])
    if out is None:
        return x.new_empty(shape)
    check_room(out, shape, x)
    _check_apart(chunk=out, whole=x, offset=rank * out.nbytes, names="out and x")
    return out


def gathered(x: torch.Tensor, out: torch.Tensor | None, world_size: int, rank: int) -> torch.Tensor:
    """Where the chunks x (n, ...) of all ranks go: out (world_size * n, ...), or a new tensor."""
    _require_tensor(x, "x")
    if x.dim() == 0:
        raise ValueError("x has no dimension along which the chunks of all ranks could stand")
    shape = (world_size * x.shape[0], *x.shape[1:])
    if out is None:
        return x.new_empty(shape)
    check_room(out, shape, x)
    _check_apart(chunk=x, whole=out, offset=rank * x.nbytes, names="x and out")
    return out


def spread_out(x: torch.Tensor, world_size: int, rank: int) -> torch.Tensor:
    """Of the shape that all chunks have together, zero but for x at this rank's place: its sum over the ranks is what
    an all-gather gives."""
    whole = x.new_zeros((world_size, *x.shape))
    whole[rank].copy_(x)
    return whole.view(-1, *x.shape[1:])


def check_room(out: torch.Tensor, shape: tuple[int, ...], x: torch.Tensor) -> None:
    """Whether out can take a result of this shape, which is otherwise like x."""
    _require_tensor(out, "out")
    if tuple(out.shape) != shape or out.dtype != x.dtype or out.device != x.device or not out.is_contiguous():
        raise ValueError(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device}, contiguous: {out.is_contiguous()}; "
            f"it must be contiguous {x.dtype} {shape} on {x.device}"
        )


def _require_tensor(x: torch.Tensor, name: str) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(x).__name__}")


def _check_apart(chunk: torch.Tensor, whole: torch.Tensor, offset: int, names: str) -> None:
    """A chunk may be this rank's own in the whole; else they share no memory."""
    begins = chunk.data_ptr() - whole.data_ptr()
    if -chunk.nbytes < begins < whole.nbytes and begins != offset:
        raise ValueError(
            f"{names} overlap: the chunk begins {begins} bytes behind the start of the whole, which has "
            f"{whole.nbytes}; there it may only be this rank's own chunk, {offset} bytes behind the start"
        )
