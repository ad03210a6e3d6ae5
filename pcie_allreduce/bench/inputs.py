"""What is summed, and between which two values each element of the sum must lie.

Every rank derives the inputs of all ranks from seeds (or from the recorded file), so that each can judge its own
output without trusting another's.

The sum of up to eight values of 8, 11 or 24 significant bits is exact in float64, or as good as. A backend that adds
in float32, in whichever order, and rounds once may still differ from the rounded exact sum, where its float32 error
carries it over a rounding boundary. That error is at most e = (N - 1) * 2^-24 * sum |x_i|, and 0 where every partial
sum fits into float32 (no term has a bit below 2^-24 * sum |x_i|). An element is correctly rounded if it lies between
round(sum - e) and round(sum + e). For bf16 and fp16 that is one value for nearly all elements, ties included.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pcie_allreduce.bench.settings import ITEM_BYTES, CannotRun, Recording, Settings

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WHOLE = {torch.bfloat16: 256, torch.float16: 2048, torch.float32: 1 << 24}  # all integers up to here are exact
SIGNIFICANT_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}

SHIFT = 1000  # elements by which the content of each buffer pair lies behind that of the one before

# The input of one rank: (rank, elements) -> CPU tensor.
Source = Callable[[int, int], torch.Tensor]

# What numpy raises over a file that is not there, is cut off or damaged, or is none of its own.
UNREADABLE = (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Expectation:
    """This rank's input and the lowest and highest right value of each element of the sum; CPU tensors."""

    source: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    def for_pair(self, pair: int) -> Expectation:
        """The same, shifted, so that no two buffer pairs hold the same and a mix-up shows."""
        return Expectation(*(shifted(x, pair) for x in (self.source, self.low, self.high)))


def shifted(x: torch.Tensor, pair: int) -> torch.Tensor:
    return x.roll(SHIFT * pair)


def integers(dtype: torch.dtype, world: int, seed: int) -> Source:
    """Whole numbers whose partial sums are exact in `dtype` in any order, so that any right all-reduce is exact."""
    limit = min(WHOLE[dtype] // world, 1 << 20)

    def make(rank: int, elements: int) -> torch.Tensor:
        generator = _generator(seed, 1, rank, elements)
        return torch.randint(-limit, limit + 1, (elements,), generator=generator).to(dtype)

    return make


def normals(dtype: torch.dtype, seed: int) -> Source:
    def make(rank: int, elements: int) -> torch.Tensor:
        return torch.randn(elements, generator=_generator(seed, 2, rank, elements)).to(dtype)

    return make


@dataclass(frozen=True)
class Workload:
    """What is timed, and what it is judged with afterwards."""

    timed: Source
    integers: Source
    reals: Source


def workload(settings: Settings) -> Workload:
    """Random inputs, or the recorded ones in place of all that are not whole numbers."""
    dtype, world = DTYPES[settings.dtype], settings.ranks
    if settings.recording:
        recorded = Recorded(settings.recording.path).source(world)
        return Workload(recorded, integers(dtype, world, seed=1), recorded)
    return Workload(normals(dtype, seed=1), integers(dtype, world, seed=1), normals(dtype, seed=2))


def expect(source: Source, rank: int, world: int, elements: int, exactly: bool) -> Expectation:
    """What one rank must find; `exactly` takes the inputs to be whole numbers whose sums are exact anyhow."""
    parts = [source(r, elements) for r in range(world)]
    total = torch.zeros(elements, dtype=torch.float64)
    size = torch.zeros(elements, dtype=torch.float64)
    finest = torch.full((elements,), torch.inf, dtype=torch.float64)
    for part in parts:
        total += part.double()
        size += part.double().abs()
        finest = torch.minimum(finest, _lowest_bit(part))
    inexact = (size * 2.0**-24 > finest) & (not exactly)
    error = torch.where(inexact, size * ((world - 1) * 2.0**-24), 0.0)
    dtype = parts[0].dtype
    return Expectation(parts[rank], round_once(total - error, dtype), round_once(total + error, dtype))


def _lowest_bit(x: torch.Tensor) -> torch.Tensor:
    """The value of the last bit of each significand, as float64; infinite for zeros."""
    exponent = torch.frexp(x.double()).exponent - SIGNIFICANT_BITS[x.dtype]
    return torch.where(x == 0, torch.inf, torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent))


def round_once(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 to `dtype`, to nearest, ties to even. torch goes through float32 and rounds twice; here the way through
    float32 is taken to the odd neighbour, which cannot be mistaken for a tie."""
    narrow = x.to(torch.float32)
    if dtype == torch.float32:
        return narrow
    inexact = narrow.double() != x
    even = (narrow.view(torch.int32) & 1) == 0
    towards = torch.where(narrow.double() < x, torch.inf, -torch.inf).to(torch.float32)
    odd = torch.where(inexact & even, torch.nextafter(narrow, towards), narrow)
    return odd.to(dtype)


class Recorded:
    """A recorded file: `partials`, the raw bits of bf16 values, [world, rows, hidden]; `provenance`, text."""

    def __init__(self, path: str) -> None:
        try:
            file = np.load(path, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("one array, as of a .npy, where a .npz has several")
            with file:
                bits, self.provenance = file["partials"], str(file["provenance"])
        except UNREADABLE as error:
            raise CannotRun(f"--input {path}: not a recorded input file ({error})") from error
        if bits.dtype != np.uint16 or bits.ndim != 3 or not bits.size:
            found = f"{bits.dtype} {bits.shape}"
            raise CannotRun(f"--input {path}: partials are {found}, not uint16 [world, rows, hidden] above 0")
        self._partials = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).flatten(1)
        nbytes = self._partials.shape[1] * ITEM_BYTES["bf16"]
        self.recording = Recording(path, self._partials.shape[0], "bf16", nbytes)

    def source(self, world: int) -> Source:
        """Partial sums for `world` ranks; fewer than were recorded each take the rounded float32 sum of their share."""
        parts = self._partials.float().view(world, -1, self._partials.shape[1]).sum(1).to(torch.bfloat16)

        def make(rank: int, elements: int) -> torch.Tensor:
            return parts[rank][:elements].clone()

        return make


def describe(recorded: Recorded) -> dict[str, Any]:
    """What the environment stamp says of a recorded file."""
    path = Path(recorded.recording.path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"file": path.name, "sha256": digest, "provenance": recorded.provenance}


def _generator(*numbers: int) -> torch.Generator:
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
