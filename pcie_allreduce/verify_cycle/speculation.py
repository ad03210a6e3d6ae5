"""From a verify pass to tokens per second.

    tokens per second = acceptance x verify share / time of a verify pass

`acceptance` is the mean number of tokens that a pass yields: accepted drafts and one more. The rest of a cycle, the
draft model and the choice, takes the part that the verify pass does not have; 97 % was reported.
"""

from __future__ import annotations

from dataclasses import dataclass

VERIFY_SHARE = 0.97


def tokens_per_second(acceptance: float, pass_us: float, share: float = VERIFY_SHARE) -> float:
    return acceptance * share / pass_us * 1e6


def acceptance_for(tokens: float, pass_us: float, share: float = VERIFY_SHARE) -> float:
    """The acceptance at which a pass yields so many tokens per second."""
    return tokens * pass_us / share / 1e6


@dataclass(frozen=True)
class Reported:
    """What was seen on eight RTX PRO 6000: tokens per second without and with speculation, and the all-reduces of a
    verify pass. What its matmuls took was not told, so it is varied."""

    plain: float = 82.0
    speculative: float = 57.0  # 54 to 60
    all_reduces: int = 122
    all_reduce_us: float = 200.0

    def pass_us(self, all_reduce_us: float, compute_us: float) -> float:
        return self.all_reduces * all_reduce_us + compute_us

    def acceptance(self, compute_us: float) -> float:
        """That the seen tokens per second imply."""
        return acceptance_for(self.speculative, self.pass_us(self.all_reduce_us, compute_us))

    def tokens_per_second(self, all_reduce_us: float, compute_us: float) -> float:
        """With another all-reduce, at the same acceptance."""
        return tokens_per_second(self.acceptance(compute_us), self.pass_us(all_reduce_us, compute_us))

    def even_us(self, compute_us: float) -> float:
        """The all-reduce at which speculation is as fast as none."""
        whole = self.acceptance(compute_us) * VERIFY_SHARE / self.plain * 1e6
        return (whole - compute_us) / self.all_reduces
