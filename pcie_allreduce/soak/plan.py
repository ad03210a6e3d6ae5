"""What happens in a round, drawn from a seed: all ranks draw the same, and a round can be drawn again."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

LATE = 0.6  # seconds at most, of a rank that is late and has to be awaited
TOO_LATE = 1.5  # seconds beyond the deadline
LARGEST_BYTES = (4096, 65536, 1 << 20)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
IN_CHUNKS = ("reduce_scatter", "all_gather")

# After these the channel goes on; after the others every rank has an error that names the culprit. After a kill, those
# that are left end too, and all start anew.
HARMLESS = ("none", "late")
FAILURES = ("too_late", "other_size", "closes")
KILLED = "killed"


@dataclass(frozen=True)
class Asked:
    """A soak that can start."""

    ranks: int
    seconds: float
    timeout: float  # of a call
    seed: int
    kills: bool


@dataclass(frozen=True)
class Call:
    """`elements`: of the payload; where it has a chunk for each rank, of all of them."""

    elements: int
    dtype: torch.dtype
    collective: str = "all_reduce"

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class Round:
    """One communicator's life."""

    seed: str
    max_bytes: int
    algorithm: str
    transport: str
    calls: tuple[Call, ...]
    graph: tuple[Call, ...]  # GPUs: captured together ...
    replays: int  # ... and replayed so often
    trouble: str
    culprit: int
    at: int  # the call before which it happens
    pause: float  # seconds, of a rank that is late


def islands_of(world: int) -> str | None:
    """Two halves, as PCIE_ALLREDUCE_ISLANDS names them; None where the algorithm does not serve."""
    return f"0-{world // 2 - 1}|{world // 2}-{world - 1}" if world in (4, 6, 8) else None


def draw(seed: int, generation: int, number: int, world: int, kills: bool) -> Round:
    """Round `number` since the processes of this `generation` were started."""
    name = f"{seed}/{generation}/{number}"
    dice = random.Random(name)
    max_bytes = dice.choice(LARGEST_BYTES)
    algorithms = ["auto", "one_shot", "two_shot"] + ["island"] * (islands_of(world) is not None)
    algorithm = dice.choice(algorithms)
    calls = tuple(_call(dice, max_bytes, world) for _ in range(dice.randint(20, 200)))
    troubles = [*["none"] * 3, *["late"] * 6, *FAILURES] + [KILLED] * (2 if kills else 0)
    return Round(
        seed=name,
        max_bytes=max_bytes,
        algorithm=algorithm,
        transport="auto" if algorithm == "island" else dice.choice(("auto", "host", "pull")),
        calls=calls,
        graph=tuple(_call(dice, max_bytes, world) for _ in range(dice.randint(1, 40))),
        replays=dice.randint(1, 20),
        trouble=dice.choice(troubles),
        culprit=dice.randrange(world),
        at=dice.randrange(len(calls)),
        pause=dice.uniform(0.001, LATE),
    )


def _call(dice: random.Random, max_bytes: int, world: int) -> Call:
    dtype = dice.choice(DTYPES)
    most = max_bytes // dtype.itemsize
    elements = max(1, int(most ** dice.random()))
    if dice.random() < 0.5:  # whole packs, as models have them
        elements = min(most, -(-elements // 8) * 8)
    if elements >= world and dice.random() < 0.3:
        return Call(elements // world * world, dtype, dice.choice(IN_CHUNKS))
    return Call(elements, dtype)
