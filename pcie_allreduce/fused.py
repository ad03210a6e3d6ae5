"""All-reduce, residual and RMSNorm: arguments, and what happens behind an all-reduce that they are not fused with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from . import _C
from .fp8 import DTYPE as FP8_DTYPE
from .fp8 import Fp8
from .fused_plan import fusable
from .transport import DTYPE_CODES


@dataclass(frozen=True)
class FusedCall:
    """The tensors of one call, checked."""

    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    eps: float
    weight_bias: float
    normed: torch.Tensor
    residual_out: torch.Tensor
    fp8: Fp8 | None = None  # then `normed` is of that type

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        """What the call writes."""
        scales = (self.fp8.scales,) if self.fp8 is not None and self.fp8.grouped else ()
        return self.normed, self.residual_out, *scales

    @property
    def room(self) -> torch.Tensor | None:
        """Where a sum may lie that the norm comes behind."""
        return self.normed if self.fp8 is None else None

    @property
    def hidden(self) -> int:
        return self.weight.numel()

    @property
    def rows(self) -> int:
        return self.x.numel() // self.hidden

    def norm(self) -> _C.Norm:
        """For the extension module, which takes addresses."""
        fp8, scales = (0, 0) if self.fp8 is None else (self.fp8.code, self.fp8.scales.data_ptr())
        return _C.Norm(
            self.residual.data_ptr(),
            self.weight.data_ptr(),
            self.normed.data_ptr(),
            self.eps,
            self.weight_bias,
            fp8,
            scales,
        )

    def is_aligned(self) -> bool:
        """Whether all memory begins at whole packs."""
        tensors = (self.x, self.residual, self.weight, self.normed, self.residual_out)
        return not any(tensor.data_ptr() % 16 for tensor in tensors)

    def aligned(self) -> FusedCall:
        """The same in memory that is aligned; the results must then be copied."""
        return replace(
            self,
            x=self.x.clone(),
            residual=self.residual.clone(),
            weight=self.weight.clone(),
            normed=torch.empty_like(self.normed),
            residual_out=torch.empty_like(self.residual_out),
        )


def checked(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_bias: float,
    out: torch.Tensor | None,
    residual_out: torch.Tensor | None,
    fp8: Fp8 | None = None,
) -> FusedCall:
    """Raises ValueError or TypeError; makes what was not given."""
    normed_dtype = x.dtype if fp8 is None else FP8_DTYPE
    given = {"x": x, "residual": residual, "weight": weight, "out": out, "residual_out": residual_out}
    for name, tensor in given.items():
        if tensor is None and name in ("out", "residual_out"):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")
        shape = x.shape[-1:] if name == "weight" else x.shape
        dtype = normed_dtype if name == "out" else x.dtype
        if tensor.dtype != dtype or tensor.device != x.device or tensor.shape != shape:
            raise ValueError(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; with x {tuple(x.shape)} it must "
                f"be {dtype} {tuple(shape)} on {x.device}"
            )
        if name != "x" and not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous: shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    if x.dim() == 0:
        raise ValueError("x has no dimension to be normalised over")
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; it must not be negative")
    if residual.requires_grad and torch.is_grad_enabled():
        raise ValueError("residual requires grad, and gradients are not recorded: use torch.no_grad()")
    normed = out
    if normed is None:
        normed = torch.empty_like(x, dtype=normed_dtype, memory_format=torch.contiguous_format)
    residual_out = torch.empty_like(residual) if residual_out is None else residual_out
    _require_apart("out", normed, residual=residual, weight=weight, residual_out=residual_out)
    _require_apart("residual_out", residual_out, x=x, weight=weight)
    _require_apart("out", normed, may_be=fp8 is None, x=x)  # a row of FP8 lies where other rows of x do
    _require_apart("residual_out", residual_out, may_be=True, residual=residual)
    if fp8 is not None:
        _require_apart("scale_out" if fp8.grouped else "scale", fp8.scales, out=normed, residual_out=residual_out)
    if fp8 is not None and fp8.grouped:
        _require_apart("scale_out", fp8.scales, x=x, residual=residual, weight=weight)
    return FusedCall(x, residual, weight, float(eps), float(weight_bias), normed, residual_out, fp8)


def _require_apart(name: str, out: torch.Tensor, /, may_be: bool = False, **others: torch.Tensor) -> None:
    for other_name, other in others.items():
        begin, other_begin = out.data_ptr(), other.data_ptr()
        same = may_be and begin == other_begin
        if not same and begin < other_begin + other.nbytes and other_begin < begin + out.nbytes:
            raise ValueError(f"{name} and {other_name} overlap in memory")


def add_rms_norm(reduced: torch.Tensor, call: FusedCall) -> None:
    """Residual and norm behind an all-reduce whose sum was rounded already; writes the call's outputs.

    `reduced` may be the memory of `normed`.
    """
    served = reduced.is_cuda and call.rows > 0 and fusable(call.hidden)  # no rows have no address
    if served and call.is_aligned() and reduced.data_ptr() % 16 == 0:
        dependent = torch.cuda.get_device_capability(reduced.device)[0] >= 9
        stream = torch.cuda.current_stream(reduced.device).cuda_stream
        with torch.cuda.device(reduced.device):
            _C.add_rms_norm(
                reduced.data_ptr(),
                call.residual_out.data_ptr(),
                call.rows,
                call.hidden,
                call.norm(),
                DTYPE_CODES[reduced.dtype],
                dependent,
                stream,
            )
        return
    call.residual_out.copy_(reduced.float() + call.residual.float())
    values = call.residual_out.float()
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + call.eps)
    normed = values * scale * (call.weight.float() + call.weight_bias)
    if call.fp8 is None:
        call.normed.copy_(normed)
    else:
        call.fp8.write(normed, call.normed)
