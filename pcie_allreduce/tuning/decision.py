"""From measured candidates to a table. Pure, so that tests can say what a measurement leads to.

Two medians of the same code differ by a percent or two from run to run. So what is there already, the untuned plan, and
before the fallback whatever is ours, gives way only to what takes less time by more than `MARGIN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, NamedTuple

from pcie_allreduce.bench.rows import Row
from pcie_allreduce.plan import Step, Tuned

MARGIN = 0.03  # of the time of what would be replaced
SIZES = (1024, 4096, 8192, 14336, 28672, 43008, 57344, 86016, 131072, 262144, 524288, 1048576, 2097152)


class Candidate(NamedTuple):
    """A step to be measured at `step.up_to` bytes. `algorithm` is "none" for the fallback; `shape`, blocks and
    threads as rank 0 launches them, None where nothing is launched."""

    step: Step
    algorithm: str
    shape: tuple[int, int] | None = None
    untuned: bool = False

    @property
    def label(self) -> str:
        if self.step.fallback:
            return "fallback"
        return f"{self.algorithm} {self.shape[0]}x{self.shape[1]}" if self.shape else self.algorithm


class Measured(NamedTuple):
    candidate: Candidate
    row: Row

    @property
    def us(self) -> float:
        return self.row.us_median


@dataclass(frozen=True)
class Choice:
    """Of one size: what the untuned plan takes, the quickest of ours, what is kept of ours, and what serves."""

    untuned: Measured
    best: Measured
    own: Measured
    chosen: Measured
    measured: tuple[Measured, ...]

    @property
    def nbytes(self) -> int:
        return self.chosen.candidate.step.up_to

    @property
    def gain_percent(self) -> float:
        """Time that the choice saves."""
        return 100 * (1 - self.chosen.us / self.untuned.us)

    @property
    def step(self) -> Step:
        """Of the table: where the untuned plan stays, the cost model goes on choosing for the sizes between, too."""
        kept = self.own.candidate.step
        algorithm, threads = ("auto", None) if self.own is self.untuned else (kept.algorithm, kept.threads)
        return Step(kept.dtype_bytes, self.nbytes, algorithm, threads, self.chosen.candidate.step.fallback)

    def to_dict(self) -> dict[str, Any]:
        return {
            "bytes": self.nbytes,
            "untuned": self.untuned.candidate.label,
            "best": self.best.candidate.label,
            "chosen": self.chosen.candidate.label,
            "gain_percent": round(self.gain_percent, 2),
            "untuned_over_best": round(self.untuned.us / self.best.us, 4),
            "candidates": [_told(measured) for measured in self.measured],
        }


def decide(measured: Sequence[Measured]) -> Choice:
    """Of all candidates of one size, the untuned plan among them."""
    ours = [each for each in measured if not each.candidate.step.fallback]
    untuned = next(each for each in ours if each.candidate.untuned)
    best = min(ours, key=lambda each: each.us)
    own = best if _clearly_less(best, untuned) else untuned
    others = [each for each in measured if each.candidate.step.fallback]
    chosen = next((other for other in others if _clearly_less(other, own)), own)
    return Choice(untuned, best, own, chosen, tuple(measured))


def table(choices: Sequence[Choice]) -> Tuned:
    """Steps by rising size. Between two measured sizes the nearer one's choice holds, by the ratio of the sizes.

    Below the smallest the cost model goes on, as it does beyond the largest: what is best for a megabyte says nothing
    of a kilobyte. Below the ladder's own smallest size there is latency alone, which was measured with that size.
    """
    choices = sorted(choices, key=lambda choice: choice.nbytes)
    first = choices[0].step
    steps = [Step(first.dtype_bytes, first.up_to - 1)] if first.up_to > SIZES[0] else []
    for choice, after in zip(choices, [*choices[1:], None], strict=True):
        up_to = choice.nbytes if after is None else isqrt(choice.nbytes * after.nbytes)
        step = replace(choice.step, up_to=up_to)
        if steps and replace(steps[-1], up_to=up_to) == step:
            steps.pop()
        steps.append(step)
    return tuple(steps)


def _clearly_less(new: Measured, old: Measured) -> bool:
    return new.us < old.us * (1 - MARGIN)


def _told(measured: Measured) -> dict[str, Any]:
    candidate, row = measured
    return {
        "backend": row.backend,
        "algorithm": candidate.algorithm,
        "blocks": candidate.shape[0] if candidate.shape else None,
        "threads": candidate.shape[1] if candidate.shape else None,
        "untuned": candidate.untuned,
        **{name: getattr(row, name) for name in _TIMES},
    }


_TIMES = ("us_median", "us_min", "us_max", "replays", "repeats", "exact", "identical", "correctly_rounded")
