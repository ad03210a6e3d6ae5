"""Sizes of the stand-in model. A rank has the shards of `tp` ranks, however many ranks there are here.

Routed experts are 4-bit weights in the model itself and bf16 here, so a quarter as many are read: as many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

BANK = 4  # layers that have weights of their own; the others use them in turn, and no cache holds all four


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    tp: int
    heads: int  # of all ranks
    query_rank: int  # MLA: width of the query's latent
    latent: int  # MLA: width of the KV cache's
    rotary: int
    head: int  # width of a head, without its rotary part
    context: int  # tokens in the KV cache
    experts: int  # routed to by a token
    intermediate: int  # of an expert, over all ranks

    @property
    def rank_heads(self) -> int:
        return max(1, self.heads // self.tp)

    @property
    def rank_intermediate(self) -> int:
        return max(1, self.intermediate // self.tp)

    def experts_read(self, rows: int) -> int:
        """bf16 experts with as many bytes as the 4-bit ones that `rows` tokens are routed to, each to others."""
        return max(1, rows * self.experts // 4)

    @property
    def all_reduces(self) -> int:
        """Attention and MoE output of each layer, and the embedding."""
        return 2 * self.layers + 1

    def nbytes(self, rows: int) -> int:
        """Payload of an all-reduce, bf16."""
        return rows * self.hidden * 2


KIMI = Shape(
    layers=61,
    hidden=7168,
    tp=8,
    heads=64,
    query_rank=1536,
    latent=512,
    rotary=64,
    head=128,
    context=4096,
    experts=8,
    intermediate=2048,
)
# CPU ranks: as many layers and all-reduces, but of little.
TINY = Shape(
    layers=61,
    hidden=512,
    tp=8,
    heads=8,
    query_rank=16,
    latent=16,
    rotary=8,
    head=8,
    context=16,
    experts=4,
    intermediate=16,
)
