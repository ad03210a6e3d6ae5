"""Whether residual and RMSNorm are fused with a call's all-reduce, by which algorithm, and in what launch shape.

Pure, as plan.py is: all ranks must come to the same answer, so it is a function of what they have agreed on. The
alternative is the cheapest all-reduce, the fallback's among them, and a norm behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .plan import PACK_BYTES, WARP, LinkFigures, Tuned, choose, cost_us, owners_of, packs_used, serves, whole_lines

MAX_HIDDEN = 16384
MAX_BLOCKS = 128
MAX_SHARED = 32 * 1024  # bytes a block: sums of squares, and the packs of a lane behind its first
SMALL_BLOCK = 128  # threads: smaller blocks start and synchronise faster, and spread over more of the GPU
PART_BLOCK = 256  # threads of a block in a team where there are owners: fewer blocks than that to meet, and small ones
NORM_US = 2.4  # a norm of its own behind an all-reduce: FlashInfer's at 1 to 8 rows of 7,168, two H200


class Shape(NamedTuple):
    """A launch that this GPU can hold: teams of `cluster` blocks of up to `threads`; `teams` at once."""

    cluster: int
    threads: int
    teams: int
    algorithm: str = "one_shot"


@dataclass(frozen=True)
class FusedPlan:
    """One call's algorithm and launch: `teams` x `cluster` blocks of `threads` that move data. CPU ranks look at the
    algorithm alone."""

    algorithm: str
    teams: int
    cluster: int
    threads: int


def common(shapes: list[tuple[Shape, ...] | None]) -> tuple[Shape, ...] | None:
    """What all ranks can hold."""
    held = [rank for rank in shapes if rank is not None]
    if not held:
        return None
    least: dict[tuple[str, int, int], int] = {}
    for cluster, threads, teams, algorithm in (shape for rank in held for shape in rank):
        key = algorithm, cluster, threads
        least[key] = min(teams, least.get(key, teams))
    everywhere = [key for key in least if all(any(_key(shape) == key for shape in rank) for rank in held)]
    return tuple(Shape(key[1], key[2], least[key], key[0]) for key in everywhere if least[key] > 0)


def _key(shape: Shape) -> tuple[str, int, int]:
    return shape.algorithm, shape.cluster, shape.threads


def fusable(hidden: int) -> bool:
    """Whether rows are whole packs in every dtype, and not too long for a team."""
    return 0 < hidden <= MAX_HIDDEN and hidden % 8 == 0


@lru_cache(maxsize=4096)
def choose_fused(
    world: int,
    rows: int,
    hidden: int,
    dtype_bytes: int,
    islands: bool,
    figures: LinkFigures,
    area_packs: int,
    algorithms: tuple[str, ...],
    shapes: tuple[Shape, ...] | None,
    algorithm: str = "auto",
    tuned: Tuned = (),
    group: int = 1,
) -> FusedPlan | None:
    """The plan of a fused call of rows (> 0); None where the all-reduce and a norm behind it are cheaper, or nothing
    else is possible. `algorithms`: those that can be fused, on this kind of device. `group`: elements of a row that get
    an FP8 scale; with owners, a GPU's parts of rows must be whole groups, since a group lies within a warp."""
    nbytes = rows * hidden * dtype_bytes
    plain = choose(world, nbytes, dtype_bytes, islands, figures, area_packs, 1, algorithm, tuned)
    if plain is None or not fusable(hidden):
        return None

    def fused(name: str) -> FusedPlan | None:
        if name not in algorithms:
            return None
        if shapes is None:
            return FusedPlan(name, 1, 1, 1)
        packs = hidden * dtype_bytes // PACK_BYTES
        owners = owners_of(name, world)
        part = part_packs(packs, owners)
        if owners > 1 and part * PACK_BYTES % (group * dtype_bytes) != 0:
            return None
        laid_out = rows * part * owners * PACK_BYTES if owners > 1 else nbytes
        if packs_used(name, world, laid_out, dtype_bytes, figures.transport) > area_packs:
            return None
        serving = tuple(shape for shape in shapes if shape.algorithm == name)
        shape = part_shape(rows, part, owners, serving) if owners > 1 else fused_shape(rows, packs, serving)
        return None if shape is None else FusedPlan(name, *shape)

    plan = fused(plain.algorithm)
    if plan is not None or algorithm != "auto":
        return plan
    serving = [name for name in algorithms if serves(name, world, islands)]
    costs = {name: cost_us(name, world, nbytes, dtype_bytes, islands, figures) for name in (*serving, plain.algorithm)}
    for name in sorted(serving, key=costs.__getitem__):
        plan = fused(name)
        if plan is not None and costs[name] < costs[plain.algorithm] + NORM_US:
            return plan
    return None


def part_packs(packs: int, owners: int) -> int:
    """Packs of a row that an owner has: whole lines."""
    return whole_lines(-(-packs // owners))


def part_shape(rows: int, part: int, owners: int, shapes: tuple[Shape, ...]) -> tuple[int, int, int] | None:
    """Teams, blocks of a team and threads where there are owners: a team has a row and a lane one pack of it, in whole
    warps of one owner; None where no shape holds them. Blocks near to PART_BLOCK come first."""
    fits = [
        (threads, cluster)
        for cluster, threads, teams, _ in shapes
        if cluster * threads >= part * owners and rows <= teams and rows * cluster <= MAX_BLOCKS
    ]
    if not fits:
        return None
    threads, cluster = min(fits, key=lambda fit: (abs(fit[0] - PART_BLOCK), fit))
    return rows, cluster, threads


def fused_shape(rows: int, packs: int, shapes: tuple[Shape, ...]) -> tuple[int, int, int] | None:
    """Teams, blocks of a team and threads for rows of so many packs; None where no shape holds them.

    Few packs a lane come first, and then blocks near to SMALL_BLOCK.
    """
    best: tuple[tuple[int, int], tuple[int, int, int]] | None = None
    for cluster, most, teams_at_once, _ in shapes:
        items = -(-packs // (cluster * most))  # of a row, a lane
        threads = -(-packs // (cluster * items) // WARP) * WARP
        teams = min(rows, teams_at_once, MAX_BLOCKS // cluster)
        stacked = -(-rows // max(teams, 1))
        if teams == 0 or (items > 1 and stacked > 1) or shared_bytes(items * stacked, packs, threads) > MAX_SHARED:
            continue
        rank = (items * stacked, abs(threads - SMALL_BLOCK))
        if best is None or rank < best[0]:
            best = rank, (teams, cluster, threads)
    return None if best is None else best[1]


def shared_bytes(items: int, packs: int, threads: int) -> int:
    """An upper bound of what csrc/cuda/launch.cpp asks for."""
    sums = -(-packs // (4 * WARP)) * PACK_BYTES
    return 2 * PACK_BYTES + items * sums + (items - 1) * threads * PACK_BYTES
