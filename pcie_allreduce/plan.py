"""Which algorithm and launch shape serve a call. Pure: sizes in, a frozen Plan out; imports nothing of this package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

PACK_BYTES = 16


@dataclass(frozen=True)
class Plan:
    """One call's algorithm and GPU launch shape. Ranks must agree on the algorithm; shapes are each rank's own affair."""

    algorithm: str
    blocks: int
    threads: int


def packs_of(nbytes: int) -> int:
    """16-byte packs that hold nbytes bytes."""
    return -(-nbytes // PACK_BYTES)


@lru_cache(maxsize=4096)
def plan_one_shot(nbytes: int, max_blocks: int) -> Plan:
    """One pack a thread while the blocks last: small blocks start and synchronise faster, and spread over the GPU."""
    packs = packs_of(nbytes)
    threads = 64 if packs <= 1024 else 128 if packs <= 4096 else 256
    return Plan("one_shot", max(1, min(max_blocks, -(-packs // threads))), threads)
