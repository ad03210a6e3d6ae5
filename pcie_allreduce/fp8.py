"""The norm's result as FP8 (e4m3) with scales: what a call may ask for, and the same by torch's own operations.

Scales multiply: a value is `quantised * scale`, as engines' kernels have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0
LEAST_MAGNITUDE = 1e-10  # of a group, as SGLang's and vLLM's kernels have it: a group of zeros has a scale too
GROUP = 128
TENSOR_CODE, GROUPS_CODE = 1, 2  # csrc/protocol/norm.h


@dataclass(frozen=True)
class Fp8:
    """Scales of one call: one for the whole tensor, which is given, or one for each group of a row, to be written."""

    scales: torch.Tensor
    grouped: bool

    @property
    def code(self) -> int:
        return GROUPS_CODE if self.grouped else TENSOR_CODE

    def write(self, normed: torch.Tensor, out: torch.Tensor) -> None:
        """Quantises normed (float32) into out, by groups with their scales. A NaN counts in no scale, and stays NaN."""
        if not self.grouped:
            _write(normed * self.scales.reciprocal(), out)
            return
        groups = normed.view(*normed.shape[:-1], normed.shape[-1] // GROUP, GROUP)
        largest = groups.abs().nan_to_num(nan=0.0, posinf=math.inf).amax(-1, keepdim=True).clamp_(min=LEAST_MAGNITUDE)
        self.scales.copy_((largest * (1.0 / LARGEST)).squeeze(-1))
        inverse = torch.full_like(largest, LARGEST) / largest  # `LARGEST / largest` would round twice
        _write((groups * inverse).flatten(-2), out)


def _write(values: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_((values + 0.0).clamp_(-LARGEST, LARGEST))  # torch's conversion gives NaN for what is larger


def checked(
    x: torch.Tensor,
    scale: torch.Tensor | float | None,
    group_size: int | None,
    scale_out: torch.Tensor | None,
) -> Fp8:
    """Raises ValueError or TypeError; makes what was not given. On GPUs the value of a tensor is not looked at, since
    that would wait for it."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x must be a torch.Tensor, not {type(x).__name__}")
    if (scale is None) == (group_size is None):
        raise ValueError("scale or group_size must be given, and not both")
    if scale is not None:
        if scale_out is not None:
            raise ValueError("scale_out is for the scales of groups; a scale was given")
        return Fp8(_one_scale(x, scale), False)
    if group_size != GROUP:
        raise ValueError(f"group_size is {group_size}; groups of {GROUP} elements are served")
    if x.dim() == 0 or x.shape[-1] % GROUP != 0:
        raise ValueError(f"x is {tuple(x.shape)}; its last dimension must be whole groups of {GROUP} elements")
    return Fp8(_group_scales(x, scale_out), True)


def _one_scale(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    if not isinstance(scale, torch.Tensor):
        _require_positive(float(scale))
        return torch.full((1,), float(scale), dtype=torch.float32, device=x.device)
    if scale.dtype != torch.float32 or scale.numel() != 1 or scale.device != x.device:
        raise ValueError(
            f"scale is {scale.dtype} {tuple(scale.shape)} on {scale.device}; it must be one torch.float32 on {x.device}"
        )
    if scale.device.type == "cpu" and not torch.compiler.is_compiling():
        _require_positive(float(scale))
    return scale


def _require_positive(scale: float) -> None:
    limits = torch.finfo(torch.float32)
    if not limits.tiny <= scale <= limits.max:
        raise ValueError(f"scale is {scale}; it must be positive, and a normal float32 number")


def _group_scales(x: torch.Tensor, scale_out: torch.Tensor | None) -> torch.Tensor:
    shape = (*x.shape[:-1], x.shape[-1] // GROUP)
    if scale_out is None:
        return torch.empty(shape, dtype=torch.float32, device=x.device)
    if not isinstance(scale_out, torch.Tensor):
        raise TypeError(f"scale_out must be a torch.Tensor, not {type(scale_out).__name__}")
    if scale_out.dtype != torch.float32 or scale_out.shape != shape or scale_out.device != x.device:
        raise ValueError(
            f"scale_out is {scale_out.dtype} {tuple(scale_out.shape)} on {scale_out.device}; with x {tuple(x.shape)} "
            f"it must be torch.float32 {shape} on {x.device}"
        )
    if not scale_out.is_contiguous():
        raise ValueError(
            f"scale_out has strides {scale_out.stride()}; scales are written row by row (not by columns, nor aligned "
            "for TMA, nor as powers of two)"
        )
    return scale_out
