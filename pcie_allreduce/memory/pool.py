"""The KV pool, and the settings that work. The pool is fraction x base - used (`facts`), so

low    below used / base no pool is left
high   above it, what comes after the pool finds too little:
       fraction x base + later + draft KV <= what there is, where draft KV = share x pool
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pcie_allreduce.memory.facts import GB, NOT_CHUNKED, Facts
from pcie_allreduce.memory.model import Model

GRAPHS = 2.0  # GB; SGLang's logs in the wild say 0.9 to 2.7
CHUNK = 8192
UNCHUNKED = 16384  # SGLang's --max-prefill-tokens unless set: of one pass, where nothing is chunked
STEP = 1000  # settings are given to three digits


@dataclass(frozen=True)
class Part:
    """One term of the sum, GB, and where it is from."""

    name: str
    gb: float
    origin: str


@dataclass(frozen=True)
class Pool:
    base: float
    used: float
    there: float  # what base, pool and all that follows must share
    later: tuple[Part, ...]
    fraction: float
    draft_share: float  # KV cache of the draft model, as a share of the target's
    least: float  # GB that a pool must have
    token_bytes: float
    cap: float = 1.0  # a setting above which memory ran out

    @property
    def gb(self) -> float:
        return self.at(self.fraction)

    def at(self, fraction: float) -> float:
        return fraction * self.base - self.used

    def left(self, fraction: float) -> float:
        """For what comes after the pool; with a draft model its KV cache is already taken off."""
        return self.there - fraction * self.base - self.draft_share * max(0.0, self.at(fraction))

    def tokens(self, fraction: float) -> int:
        return max(0, int(self.at(fraction) * GB // self.token_bytes))

    @property
    def needed_later(self) -> float:
        return sum(part.gb for part in self.later)

    @property
    def exact_low(self) -> float:
        return (self.used + self.least) / self.base

    @property
    def low(self) -> float:
        """The lowest setting, of three digits, that leaves a pool."""
        rounded = math.ceil(self.exact_low * STEP) / STEP
        return rounded if rounded * self.base > self.used + self.least or self.least else rounded + 1 / STEP

    @property
    def high(self) -> float:
        exact = (self.there - self.needed_later + self.draft_share * self.used) / (self.base * (1 + self.draft_share))
        return math.floor(min(self.cap, exact) * STEP) / STEP

    @property
    def fits(self) -> bool:
        return self.low <= self.fraction <= self.high


def pool_of(facts: Facts, model: Model) -> Pool:
    """`facts` must have been checked."""
    fraction = facts.fraction or 0.0
    token_bytes = facts.token_bytes or model.token_bytes
    share = 1 / model.layers if facts.draft is not None else 0.0
    base = (facts.before if facts.engine == "sglang" else facts.total) or 0.0
    return Pool(
        base=base,
        used=_used(facts, model),
        there=base if facts.free is None else facts.free,
        later=tuple(_later(facts, model)),
        fraction=fraction,
        draft_share=share,
        least=facts.needed or 0.0,
        token_bytes=token_bytes,
        cap=1.0 if facts.cap is None else facts.cap,
    )


def _used(facts: Facts, model: Model) -> float:
    if facts.engine == "sglang":
        return (facts.before or 0.0) - (facts.after or 0.0)
    if facts.used is not None:
        return facts.used
    return (facts.weights or 0.0) + (facts.other or 0.0) + activations(facts, model).gb


def activations(facts: Facts, model: Model) -> Part:
    """Of the largest forward pass: one chunk of a prompt, or all of it where prompts are not chunked."""
    if facts.activations is not None:
        return Part("activations", facts.activations, "given, or told by the log")
    whole = facts.chunk == NOT_CHUNKED
    tokens = UNCHUNKED if whole else CHUNK if facts.chunk is None else facts.chunk
    origin = f"assumed: {tokens:,} tokens x {model.at_work} tensors x {model.row_bytes:,} bytes"
    if whole:
        origin = f"not chunked, {origin}, or more"
    return Part("activations", tokens * model.at_work * model.row_bytes / GB, origin)


def _later(facts: Facts, model: Model) -> list[Part]:
    """What is taken after the pool."""
    assumed = facts.graphs is None
    parts = [Part("CUDA graphs", GRAPHS if assumed else facts.graphs or 0.0, "assumed" if assumed else "given or told")]
    if facts.engine == "sglang":
        parts.append(activations(facts, model))
        if facts.draft is not None and not facts.draft_counted:
            parts.append(Part("draft model", facts.draft, "its weights are loaded after the pool is taken"))
    return parts
