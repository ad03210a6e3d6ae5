"""Memory that communication takes before the weights are loaded: NCCL's, and this package's.

NCCL keeps one buffer for each protocol, channel and connection, whether the protocol is used or not. The sizes are the
defaults of its source (NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE). How many channels and connections it
opens it decides for itself: `pcie-allreduce bench --nccl-sweep` measures what they take.
"""

from __future__ import annotations

from dataclasses import dataclass

from pcie_allreduce.memory.facts import MOST, CannotTell
from pcie_allreduce.plan import area_packs_for, memory_bytes

SIMPLE, LL, LL128 = 4 << 20, 8 * 512 * 8 * 16, 120 * 640 * 8 * 8  # bytes
MIN_WORLD, MAX_WORLD = 2, 8
DEFAULT_BYTES, MAX_BYTES = 2 << 20, 1 << 30  # max_bytes of a communicator


@dataclass(frozen=True)
class Nccl:
    """`peers`: connections of a channel (a ring has two neighbours); `groups`: communicators of a rank."""

    channels: int = 8
    buffer: int = SIMPLE
    peers: int = 2
    groups: int = 2

    def check(self) -> None:
        for flag, value, most in (
            ("channels", self.channels, 64),
            ("buffer", self.buffer, MAX_BYTES),
            ("peers", self.peers, 1024),
            ("groups", self.groups, 1024),
        ):
            if not 1 <= value <= most:
                raise CannotTell(f"--nccl-{flag} {value}: it must be within 1 and {most}")

    @property
    def bytes(self) -> int:
        return self.groups * self.channels * self.peers * (self.buffer + LL + LL128)


@dataclass(frozen=True)
class Ours:
    """A slab of this package: in GPU memory with P2P, else in the host's."""

    world: int
    max_bytes: int

    def check(self) -> None:
        if not 1 <= self.world <= MOST:
            raise CannotTell(f"--tp {self.world}: it must be within 1 and {MOST}")
        if not 16 <= self.max_bytes <= MAX_BYTES:
            raise CannotTell(f"--max-bytes {self.max_bytes}: it must be within 16 and {MAX_BYTES}")

    @property
    def serves(self) -> bool:
        """A server of other sizes is asked about, too; there is no slab then."""
        return MIN_WORLD <= self.world <= MAX_WORLD

    def bytes(self, transport: str = "push") -> int:
        return memory_bytes(area_packs_for(self.world, self.max_bytes, transport=transport), transport)
