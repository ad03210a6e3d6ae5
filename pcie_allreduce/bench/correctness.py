"""Is the sum right? Judged for every backend, size and mode, in the buffers that were timed, with inputs they had not
seen and outputs filled with NaN before, so that a launch that does nothing cannot pass.

exact             whole-number inputs gave the exact sum on every rank
correctly_rounded every element of a real-valued sum, on every rank, is the exact sum rounded once to the dtype, but for
                  elements that float32 addition carries over a rounding boundary (`inputs` says how far that reaches)
identical         the bits of all outputs are the same on all ranks, the sign of zero included
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pcie_allreduce.bench.execution import Pair
from pcie_allreduce.bench.inputs import Expectation


@dataclass(frozen=True)
class Verdict:
    exact: bool | None
    identical: bool | None
    correctly_rounded: bool | None


NOT_JUDGED = Verdict(None, None, None)


@dataclass(frozen=True)
class Finding:
    """What one rank saw."""

    exact: bool
    correctly_rounded: bool
    digest: str


class Reducer(Protocol):
    def restore(self) -> None: ...

    def each_pair(self) -> None: ...


def judge(
    run: Reducer,
    pairs: Sequence[Pair],
    integers: Sequence[Expectation],
    reals: Sequence[Expectation],
    gather: Callable[[Any], list[Any]],
) -> Verdict:
    """Collective. `gather` returns the values of all ranks, in rank order."""
    exact, first = _reduce(run, pairs, integers)
    rounded, second = _reduce(run, pairs, reals)
    return combine(gather(Finding(exact, rounded, first + second)))


def combine(findings: Sequence[Finding]) -> Verdict:
    return Verdict(
        exact=all(finding.exact for finding in findings),
        identical=len({finding.digest for finding in findings}) == 1,
        correctly_rounded=all(finding.correctly_rounded for finding in findings),
    )


def within(output: torch.Tensor, expected: Expectation) -> bool:
    """NaN lies nowhere."""
    return bool(((output >= expected.low) & (output <= expected.high)).all())


def digest(outputs: Sequence[torch.Tensor]) -> str:
    state = hashlib.sha256()
    for output in outputs:
        state.update(output.contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def _reduce(run: Reducer, pairs: Sequence[Pair], expected: Sequence[Expectation]) -> tuple[bool, str]:
    for pair, expectation in zip(pairs, expected, strict=True):
        pair.source.copy_(expectation.source)
        pair.output.fill_(torch.nan)
    run.restore()
    run.each_pair()
    outputs = [pair.output.cpu() for pair in pairs]
    right = all(within(output, expectation) for output, expectation in zip(outputs, expected, strict=True))
    return right, digest(outputs)
