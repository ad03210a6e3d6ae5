"""What is known of a start of an engine. SGLang and vLLM do the same sum with other names:

    pool = fraction x base - used

    SGLang   base  free memory before the weights are loaded (not the GPU's capacity), least over the ranks
             used  what is gone after them, weights above all
    vLLM     base  the GPU's memory
             used  weights, other memory than torch's, and the peak of activations

Afterwards come CUDA graphs, with SGLang activations too, and up to 0.5.9 or so a draft model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

GB = 2**30
FLAGS = {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"}
SIZES = ("before", "after", "total", "free", "weights", "other", "activations", "graphs", "draft", "needed")
NOT_CHUNKED = -1  # as SGLang has it
MOST = 1 << 30  # of what is counted


class CannotTell(ValueError):
    """What was given does not suffice or contradicts itself; the message says what."""


@dataclass(frozen=True)
class Facts:
    """GB of one GPU, the one with least; None is "not known"."""

    fraction: float | None = None
    before: float | None = None  # SGLang: free before the weights
    after: float | None = None  # SGLang: free after them
    total: float | None = None  # vLLM: of the GPU
    free: float | None = None  # vLLM: at the start
    weights: float | None = None
    other: float | None = None  # vLLM: taken outside of torch
    used: float | None = None  # vLLM: taken before the pool, where the log's pool tells it
    activations: float | None = None
    graphs: float | None = None
    draft: float | None = None  # weights of a draft model
    draft_counted: bool = False  # they are loaded before the pool is sized, so that `after` is without them
    token_bytes: float | None = None  # KV cache of a token on one rank, all layers
    pool_tokens: int | None = None  # of the pool that was allocated
    needed: float | None = None  # a pool that the engine asked for: one request of the longest kind
    chunk: int | None = None  # tokens of a prefill chunk, or NOT_CHUNKED
    tp: int | None = None
    nccl_channels: int | None = None
    failure: str = (
        ""  # "pool": none left; "start": less is free than wanted; "long": too little; "later": out of memory
    )
    wanted: float | None = None  # by the allocation that failed later
    logged_pool: float | None = None  # what the engine itself found to be left, negative where nothing was
    cap: float | None = None  # a setting above which memory ran out

    @property
    def engine(self) -> str:
        return "sglang" if self.before is not None else "vllm"

    def with_given(self, **given: Any) -> Facts:
        """What a person gives counts more than what a log says."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def settled(self) -> Facts:
        """With what follows from the log's own setting, before another one is put in its place."""
        base = self.before if self.engine == "sglang" else self.total
        if not base or self.fraction is None:
            return self
        known = {}
        if self.wanted is not None:
            known["cap"] = self.fraction - self.wanted / base
        if self.engine == "vllm" and self.logged_pool is not None:
            known["used"] = self.fraction * base - self.logged_pool
        return self.with_given(**known)

    def check(self) -> None:
        """CannotTell where the pool cannot be worked out."""
        if self.chunk is not None and self.chunk != NOT_CHUNKED and not 1 <= self.chunk <= MOST:
            raise CannotTell(
                f"--chunk {self.chunk}: it must be within 1 and {MOST}, or {NOT_CHUNKED}, which is no chunks"
            )
        if self.before is None and self.total is None:
            if self.weights is not None or self.logged_pool is not None:
                raise CannotTell("the log does not say how much memory the GPU has: give --total")
            raise CannotTell("nothing says how much memory there was: give --before and --after, --total, or --log")
        if self.before is not None and self.total is not None:
            raise CannotTell("--before is SGLang's and --total vLLM's: give one of them")
        needed = {"sglang": ("before", "after", "fraction"), "vllm": ("total", "fraction")}[self.engine]
        missing = [self._flag(name) for name in needed if getattr(self, name) is None]
        if missing and not self.nothing_free:
            raise CannotTell(f"the pool cannot be worked out without {' and '.join(missing)}")
        for name in SIZES:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e6:
                raise CannotTell(f"{self._flag(name)} {value:g}: it must be within 0 and 1,000,000")
        if self.total == 0:
            raise CannotTell("--total 0: a GPU has more than 0 GB")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise CannotTell(f"{self._flag('fraction')} {self.fraction:g}: it must be above 0 and at most 1")
        if self.engine == "sglang" and (self.after or 0) > (self.before or 0):
            raise CannotTell(f"--after {self.after:g}: it cannot be more than --before {self.before:g}")
        if not self.knows_used and self.free is None:
            raise CannotTell("the pool cannot be worked out without --weights")

    @property
    def knows_used(self) -> bool:
        """False where vLLM refused to start before it had loaded anything."""
        return self.engine == "sglang" or self.weights is not None or self.used is not None

    @property
    def nothing_free(self) -> bool:
        """No sum is needed then, and a server has often ended before it told the rest."""
        return self.before == 0

    @property
    def has_lowest(self) -> bool:
        """Whether there is a lowest setting to be told."""
        return self.knows_used and not self.nothing_free

    def _flag(self, name: str) -> str:
        return FLAGS[self.engine] if name == "fraction" else "--" + name.replace("_", "-")
