"""Whether residual and RMSNorm are fused with a call's all-reduce, by which algorithm, and in what launch shape.

Pure, as plan.py is: all ranks must come to the same answer, so it is a function of what they have agreed on. The
alternative is the cheapest all-reduce, the fallback's among them, and a norm behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .plan import MAX_THREADS, PACK_BYTES, WARP, LinkFigures, Tuned, choose, cost_us, packs_used, whole_lines

MAX_HIDDEN = 16384
MAX_BLOCKS = 128
MAX_SHARED = 48 * 1024  # bytes a block: sums of squares, and the packs of a lane behind its first
SMALL_BLOCK = 128  # threads: smaller blocks start and synchronise faster, and spread over more of the GPU
NORM_US = 2.4  # a norm of its own behind an all-reduce: FlashInfer's at 1 to 8 rows of 7,168, two H200


class Shape(NamedTuple):
    """A launch that this GPU can hold: teams of `cluster` blocks of up to `threads`; `teams` at once. Two-shot's teams
    are blocks."""

    algorithm: str
    cluster: int
    threads: int
    teams: int


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
    teams = [{shape[:3]: shape.teams for shape in rank} for rank in held]
    least = {key: min(rank.get(key, 0) for rank in teams) for key in teams[0]}
    return tuple(Shape(*key, most) for key, most in least.items() if most > 0)


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
) -> FusedPlan | None:
    """The plan of a fused call of rows (> 0); None where the all-reduce and a norm behind it are cheaper, or nothing
    else is possible. `algorithms`: those that can be fused, on this kind of device."""
    nbytes = rows * hidden * dtype_bytes
    plain = choose(world, nbytes, dtype_bytes, islands, figures, area_packs, 1, algorithm, tuned)
    if plain is None or not fusable(hidden):
        return None
    if shapes is None:
        return FusedPlan(plain.algorithm, 1, 1, 1) if plain.algorithm in algorithms else None

    def cost(name: str) -> float:
        return cost_us(name, world, nbytes, dtype_bytes, islands, figures)

    packs = hidden * dtype_bytes // PACK_BYTES
    plans = []
    for name in algorithms:
        shape, padded = one_shot_shape(rows, packs, shapes), nbytes
        if name == "two_shot":
            shape, padded = two_shot_shape(world, rows, packs, shapes), rows * world * _part(packs, world) * PACK_BYTES
        fits = packs_used(name, world, padded, dtype_bytes, figures.transport) <= area_packs
        if shape is not None and fits and algorithm in ("auto", name):
            plans.append(FusedPlan(name, *shape))
    if not plans:
        return None
    best = min(plans, key=lambda plan: (plan.algorithm != plain.algorithm, cost(plan.algorithm)))
    separately = cost(plain.algorithm) + NORM_US
    return best if best.algorithm == plain.algorithm or cost(best.algorithm) < separately else None


def _part(packs: int, world: int) -> int:
    """Packs of a row that one rank owns in two-shot: whole lines."""
    return whole_lines(-(-packs // world))


def one_shot_shape(rows: int, packs: int, shapes: tuple[Shape, ...]) -> tuple[int, int, int] | None:
    """Teams, blocks of a team and threads for rows of so many packs; None where no shape holds them.

    Few packs a lane come first, and then blocks near to SMALL_BLOCK.
    """
    best: tuple[tuple[int, int], tuple[int, int, int]] | None = None
    for algorithm, cluster, most, teams_at_once in shapes:
        if algorithm != "one_shot":
            continue
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


def two_shot_shape(world: int, rows: int, packs: int, shapes: tuple[Shape, ...]) -> tuple[int, int, int] | None:
    """The same of two-shot, where a block has a row, its sums and its weights."""
    threads = -(-_part(packs, world) // WARP) * WARP
    at_once = max((shape.teams for shape in shapes if shape.algorithm == "two_shot"), default=0)
    fits = threads <= MAX_THREADS and MAX_THREADS // 8 + 2 * packs * PACK_BYTES <= MAX_SHARED
    return (rows, 1, threads) if fits and rows <= min(at_once, MAX_BLOCKS) else None


def shared_bytes(items: int, packs: int, threads: int) -> int:
    """An upper bound of what csrc/cuda/launch.cpp asks for."""
    sums = -(-packs // (4 * WARP)) * PACK_BYTES
    return 2 * PACK_BYTES + items * sums + (items - 1) * threads * PACK_BYTES
