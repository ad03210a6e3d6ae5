"""How many samples go through the model at once when hidden states are extracted.

A batch counts samples, and memory counts tokens: a batch of 2,000 samples of 2,048 tokens is four million tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from pcie_allreduce.memory.facts import GB, MOST, CannotTell
from pcie_allreduce.memory.model import Model


@dataclass(frozen=True)
class Extraction:
    samples: int
    sample_tokens: int
    batch: int  # samples
    headroom: float  # GB that are free beside weights and KV pool
    model: Model

    def check(self) -> None:
        for flag, value in (("samples", self.samples), ("sample-tokens", self.sample_tokens), ("batch", self.batch)):
            if not 1 <= value <= MOST:
                raise CannotTell(f"--{flag} {value}: it must be within 1 and {MOST}")
        if not 0 < self.headroom < 1e6:
            raise CannotTell(f"--headroom {self.headroom:g}: it must be above 0 and below 1,000,000")

    @property
    def in_batch(self) -> int:
        return min(self.batch, self.samples)

    @property
    def token_bytes(self) -> int:
        """What is kept of a token, and what is at work on it."""
        return (self.model.kept + self.model.at_work) * self.model.row_bytes

    @property
    def sample_gb(self) -> float:
        return self.gb(1)

    def gb(self, samples: int) -> float:
        return samples * self.sample_tokens * self.token_bytes / GB

    @property
    def fitting(self) -> int:
        """Samples of a batch that fits; 0 where not even one does."""
        return min(self.samples, int(self.headroom // self.sample_gb))

    @property
    def fitting_tokens(self) -> int:
        """Tokens of a forward pass that fits, whatever samples they are of."""
        return int(self.headroom * GB // self.token_bytes)

    @property
    def fits(self) -> bool:
        return self.in_batch <= self.fitting
