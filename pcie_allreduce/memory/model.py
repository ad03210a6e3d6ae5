"""The shape of a model as far as memory goes, and what a token of it costs."""

from __future__ import annotations

from dataclasses import dataclass

from pcie_allreduce.memory.facts import CannotTell

ITEM = 2  # bytes of an activation: bf16
BESIDE_EXPERTS = 4  # hidden-sized tensors at work at once: residual, its normalised copy, attention's output, their sum


@dataclass(frozen=True)
class Model:
    """Kimi-K2.5 unless told otherwise. `kv_width`: values of one token in the KV cache of one layer on one rank. MLA
    keeps 512 + 64 of them on every rank; others (KV heads of a rank) x (sizes of key and value)."""

    hidden: int = 7168
    layers: int = 61
    kv_width: int = 576
    kv_item: int = 2
    experts: int = 8  # of a token; each has an output of hidden size before they are summed
    kept: int = 4  # hidden states that extraction keeps: three for an EAGLE-3 draft, and the last

    def check(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in ("experts", "kept") else 1
            if not least <= value <= 1 << 24:
                raise CannotTell(f"--{name.replace('_', '-')} {value}: it must be within {least} and {1 << 24}")

    @property
    def token_bytes(self) -> int:
        """KV cache of one token on one rank."""
        return self.layers * self.kv_width * self.kv_item

    @property
    def at_work(self) -> int:
        """Hidden-sized tensors alive at once in a forward pass. Assumed, not measured."""
        return BESIDE_EXPERTS + self.experts

    @property
    def row_bytes(self) -> int:
        """One hidden state. Every rank holds all of it: tensor parallelism does not divide it."""
        return self.hidden * ITEM
