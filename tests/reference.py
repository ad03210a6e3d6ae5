"""What a sum must be, bit for bit, computed with numpy alone so that it shares no code with the package.

The rule: widen to float32, add in rank order to an accumulator that starts at +0.0, round once to nearest even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHORT = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
EPSILON = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}  # half a unit in the last place
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}

Bits = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


def to_bits(x: torch.Tensor) -> Bits:
    """The bit patterns of x, flat."""
    flat = x.detach().reshape(-1).cpu()
    if flat.dtype == torch.float32:
        return flat.view(torch.int32).numpy().view(np.uint32)
    return flat.view(torch.int16).numpy().view(np.uint16)


def from_bits(bits: npt.ArrayLike, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float32:
        return torch.from_numpy(np.array(bits, np.uint32).view(np.int32)).view(dtype)
    return torch.from_numpy(np.array(bits, np.uint16).view(np.int16)).view(dtype)


def widened(bits: Bits, dtype: torch.dtype) -> Floats:
    if dtype == torch.float32:
        return bits.view(np.float32)
    if dtype == torch.float16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(sums: Floats, dtype: torch.dtype) -> Bits:
    if dtype == torch.float32:
        return sums.view(np.uint32)
    if dtype == torch.float16:
        with np.errstate(over="ignore"):
            return sums.astype(np.float16).view(np.uint16)
    word = sums.view(np.uint32)
    even = (word >> np.uint32(16)) & np.uint32(1)
    result = ((word + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(sums), np.uint16(0x7FC0), result)


def expected_sum(parts: Sequence[torch.Tensor]) -> Bits:
    """The bits of the all-reduce of one tensor per rank."""
    dtype = parts[0].dtype
    total = np.zeros(parts[0].numel(), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts:
            total = total + widened(to_bits(part), dtype)
    return rounded(total, dtype)


def difference(got: torch.Tensor, expected: Bits) -> str | None:
    """None where got has the expected bits; NaN matches any NaN. Otherwise the first difference, in words."""
    bits = to_bits(got)
    if bits.shape != expected.shape:
        return f"{bits.shape} elements, expected {expected.shape}"
    nan = np.isnan(widened(bits, got.dtype)) & np.isnan(widened(expected, got.dtype))
    wrong = np.flatnonzero((bits != expected) & ~nan)
    if not wrong.size:
        return None
    first = int(wrong[0])
    values = widened(bits, got.dtype)[first], widened(expected, got.dtype)[first]
    return (
        f"{wrong.size} of {bits.size} elements differ; element {first} is {values[0]} ({int(bits[first]):#x}), "
        f"expected {values[1]} ({int(expected[first]):#x})"
    )


def rounding_excess(got: torch.Tensor, parts: Sequence[torch.Tensor]) -> float:
    """How far got is from the exact sum beyond one rounding to its type and float32's roundings; 0 is right."""
    wide = [widened(to_bits(part), part.dtype).astype(np.float64) for part in parts]
    exact = np.sum(wide, axis=0)
    allowed = np.maximum(np.abs(exact) * EPSILON[got.dtype], SMALLEST[got.dtype] / 2)
    if got.dtype == torch.float32:
        allowed = np.zeros_like(exact)
    allowed = allowed * (1 + 2.0**-20) + (len(parts) - 1) * 2.0**-24 * np.sum(np.abs(wide), axis=0)
    error = np.abs(widened(to_bits(got), got.dtype).astype(np.float64) - exact)
    return float(np.max(error - allowed, initial=0.0))


def make_parts(kind: str, world: int, elements: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """One tensor per rank, the same list on every rank: `kind` is integers, normal, mixed or patterns."""
    random = np.random.default_rng([seed, world, elements, DTYPES.index(dtype)])
    parts = []
    for _ in range(world):
        if kind == "integers":  # sums of eight stay below 256 and are exact in every type
            values = random.integers(-30, 31, elements).astype(np.float32)
        elif kind == "normal":
            values = random.standard_normal(elements).astype(np.float32)
        elif kind == "mixed":  # exponents far enough apart that the order of addition shows
            values = (random.standard_normal(elements) * 2.0 ** random.integers(-8, 9, elements)).astype(np.float32)
        elif kind == "patterns":  # NaN, infinities, subnormal numbers, both zeros and what the protocol calls empty
            parts.append(from_bits(random_patterns(random, elements, dtype), dtype))
            continue
        else:
            raise ValueError(f"unknown kind {kind!r}")
        parts.append(from_bits(rounded(values, dtype), dtype))
    return parts


def random_patterns(random: np.random.Generator, elements: int, dtype: torch.dtype) -> Bits:
    if dtype == torch.float32:
        bits: Bits = random.integers(0, 1 << 32, elements, dtype=np.uint32)
        special = np.array([0, 0x80000000, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 1], np.uint32)
    else:
        bits = random.integers(0, 1 << 16, elements, dtype=np.uint16)
        infinity = 0x7C00 if dtype == torch.float16 else 0x7F80
        special = np.array([0, 0x8000, 0x8001, infinity, infinity | 0x8000, infinity + 1, 0xFFFF, 1], np.uint16)
    chosen = random.random(elements) < 0.2
    return np.where(chosen, random.choice(special, elements), bits)


class Guarded:
    """A tensor inside a larger buffer whose other elements must stay as they are: finds writes outside it.

    `offset` elements stand before it, so that an odd offset makes it unaligned. It starts out full of NaN.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: str, offset: int = 0) -> None:
        self._before = 16 + offset
        self._buffer = torch.full((self._before + elements + 24,), 7.0, dtype=dtype, device=device)
        self.tensor = self._buffer[self._before : self._before + elements]
        self.tensor.fill_(float("nan"))

    def holding(self, values: torch.Tensor) -> torch.Tensor:
        self.tensor.copy_(values)
        return self.tensor

    def intact(self) -> bool:
        end = self._before + self.tensor.numel()
        outside = torch.cat([self._buffer[: self._before], self._buffer[end:]])
        return bool((outside == 7.0).all())
