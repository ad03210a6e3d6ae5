"""Which algorithm and launch shape serve a call.

All ranks must run the same algorithm, so the choice is a function of what they have agreed on (sizes, islands, link
figures, mailbox size) and never of a rank's own clock or GPU. Over PCIe what decides is how many bytes cross which
link, which no measurement on other links can tell: hence a cost model; and a table of steps where `pcie-allreduce tune`
has measured this very machine. Pure; imports nothing of this package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

PACK_BYTES = 16
LINE_PACKS = 8
SIGNATURE_PACKS = 8 * LINE_PACKS  # in front of what readers fetch: a line for each
PHASES = 3
STAGED_PHASES = 4
MAILBOX_OFFSET = 12288
STAGING_OFFSET = 16896
COPIES = 2  # of what peers read, where they pull
ALGORITHMS = ("one_shot", "two_shot", "island")
TRANSPORTS = ("push", "staged", "pull")  # as csrc/protocol/mailbox.h numbers them
ONE_SHOT_ROOM = 64 * 1024  # bytes that one-shot has room for in any case: above the crossovers of 4 ranks and more
MAX_THREADS = 256
WARP = 32
USEFUL_BLOCKS = 128  # measured: one pack a lane at 512 KB, 128 x 256, takes 3.6 us where two, 64 x 256, take 4.4


@dataclass(frozen=True)
class Plan:
    """One call's algorithm and GPU launch shape. Ranks must agree on the algorithm; shapes are each rank's own affair.

    `threads` are those that move data, `blocks` x `threads` the lanes; CPU ranks have one lane and look at neither.
    """

    algorithm: str
    blocks: int
    threads: int


@dataclass(frozen=True)
class Step:
    """What was measured to be best for calls of at most `up_to` bytes, and of more than the step before has.

    `algorithm` "auto": what the cost model chooses; `threads` None: what `shape` chooses. `fallback`: the group's other
    all-reduce was faster still, and serves where there is one.
    """

    dtype_bytes: int
    up_to: int
    algorithm: str = "auto"
    threads: int | None = None
    fallback: bool = False

    def __post_init__(self) -> None:
        """Steps come from files, and a plan must not be made of anything else."""
        numbers = (self.dtype_bytes, self.up_to, *(() if self.threads is None else (self.threads,)))
        whole = all(type(number) is int for number in numbers) and type(self.fallback) is bool
        if not whole or self.dtype_bytes not in (2, 4) or self.up_to < 1 or self.algorithm not in ("auto", *ALGORITHMS):
            raise ValueError(f"no step of a tuned table: {self}")
        if self.threads is not None and (self.threads not in range(WARP, MAX_THREADS + 1, WARP)):
            raise ValueError(f"{self.threads} threads are no multiple of {WARP} up to {MAX_THREADS}")


Tuned = tuple[Step, ...]  # within a dtype_bytes by rising up_to


class LinkFigures(NamedTuple):
    """What the cost model knows of a machine: microseconds, and GB/s (10^9 bytes) each way. Hashed in every call."""

    launch_us: float  # of an empty kernel in a graph
    base_us: float  # of a call, beside its launch and its stages
    stage_us: float  # of a stage: from the last arrival to the next store
    source_us: float  # of each source that a lane waits for in a stage
    inside_us: float  # store to poll, between ranks of one island, or of a machine without islands
    across_us: float  # store to poll, between islands
    egress_gbps: float  # that one rank's stores reach
    uplink_gbps: float  # of the link that all ranks of an island share on their way to the other
    sum_gbps: float  # at which a rank reads and sums what has arrived
    read_us: float | None  # pull: staging, fence, flag and the first read's round trip; None: not known
    read_gbps: float | None  # that one rank reads while all do
    transport: str = "push"  # "staged": ranks write to host memory and read there; "pull": they read from each other
    sum_copies: int = 1  # staged: of an owner's sums, one for each rank of the GPU that has most


NO_FIGURES = ("transport", "sum_copies")  # that somebody could measure
FIGURES = tuple(name for name in LinkFigures._fields if name not in NO_FIGURES)


class Stage(NamedTuple):
    """One pass over the wire, as the formulas have it: payload without padding and signatures."""

    sources: int  # packs that a lane waits for
    out: float  # bytes that leave each rank
    uplink: float  # bytes that cross from one island to the other, each way
    crosses: bool
    read: float = 0  # bytes that each rank reads from host memory, or from its peers


def packs_of(nbytes: int) -> int:
    """16-byte packs that hold nbytes bytes."""
    return -(-nbytes // PACK_BYTES)


def whole_lines(packs: int) -> int:
    """Packs rounded up to whole 128-byte lines."""
    return -(-packs // LINE_PACKS) * LINE_PACKS


def spread(dtype_bytes: int) -> int:
    """Packs of float32 that a pack becomes in a partial sum."""
    return 4 // dtype_bytes


def lanes(algorithm: str, world: int, nbytes: int) -> int:
    """Pack positions that the lanes share: those of the payload, or of one shard (whole lines)."""
    packs = packs_of(nbytes)
    if algorithm == "one_shot":
        return packs
    return whole_lines(-(-packs // owners_of(algorithm, world)))


def packs_used(
    algorithm: str, world: int, nbytes: int, dtype_bytes: int, transport: str = "push", sum_copies: int = 1
) -> int:
    """Packs that a call uses of a mailbox phase, or of a copy that peers pull: see csrc/protocol/mailbox.h."""
    slot = whole_lines(lanes(algorithm, world, nbytes))
    if transport != "push":
        return SIGNATURE_PACKS + (slot if algorithm == "one_shot" else (world + sum_copies) * slot)
    return LINE_PACKS + _slots(algorithm, world, dtype_bytes) * slot


def area_packs_for(
    world: int, max_bytes: int, algorithm: str = "auto", transport: str = "push", sum_copies: int = 1
) -> int:
    """Packs of a phase or copy with room for max_bytes, in any dtype and by whatever "auto" may choose, islands or not.

    One-shot, which uses most of a mailbox, gets room for what it is good at; a caller that insists on it gets room for
    all. Where it does not push, it uses least.
    """
    names = candidates(world, True, algorithm, transport)
    if not names:
        raise ValueError(f"algorithm {algorithm!r} does not serve {world} ranks")
    bounded = {"one_shot": min(max_bytes, ONE_SHOT_ROOM)} if len(names) > 1 and transport == "push" else {}
    return max(packs_used(name, world, bounded.get(name, max_bytes), 2, transport, sum_copies) for name in names)


def memory_bytes(area_packs: int, transport: str = "push") -> int:
    """Bytes of a rank's slab, the control pages among them."""
    if transport == "pull":
        return STAGING_OFFSET + COPIES * area_packs * PACK_BYTES
    return MAILBOX_OFFSET + (STAGED_PHASES if transport == "staged" else PHASES) * area_packs * PACK_BYTES


def stages(
    algorithm: str,
    world: int,
    nbytes: int,
    dtype_bytes: int,
    islands: bool,
    transport: str = "push",
    sum_copies: int = 1,
) -> tuple[Stage, ...]:
    """An algorithm's passes over the wire; `islands`: half of the ranks lie behind one link, half behind another."""
    if transport != "push":
        return _read_stages(algorithm, world, nbytes, sum_copies if transport == "staged" else 0)
    half = world // 2
    crossing = half * half if islands else 0  # pairs of ranks whose traffic shares a link
    if algorithm == "one_shot":
        return (Stage(world - 1, (world - 1) * nbytes, crossing * nbytes, islands),)
    shard = nbytes / owners_of(algorithm, world)
    if algorithm == "two_shot":
        return (Stage(world - 1, (world - 1) * shard, crossing * shard, islands),) * 2
    inside = Stage(half - 1, (half - 1) * shard, 0, False)
    partial = spread(dtype_bytes) * shard
    return inside, Stage(spread(dtype_bytes), partial, half * partial, True), inside


def _read_stages(algorithm: str, world: int, nbytes: int, copies: int) -> tuple[Stage, ...]:
    """One copy serves all readers, but for sums. `copies` of those that leave the rank's memory; 0: nothing leaves."""
    leaves = min(copies, 1)
    if algorithm == "one_shot":
        return (Stage(world - 1, leaves * nbytes, 0, False, read=(world - 1) * nbytes),)
    shard = nbytes / world
    return (
        Stage(world - 1, leaves * (world - 1) * shard, 0, False, read=(world - 1) * shard),
        Stage(world - 1, copies * shard, 0, False, read=(world - 1) * shard),
    )


def wire_us(stage: Stage, figures: LinkFigures) -> float:
    """Latency and bytes of one stage: whichever link is busier decides. Staged, what was written is then read; where
    ranks pull, read_us has the flag's way in it."""
    latency = figures.across_us if stage.crosses else figures.inside_us
    sent = latency + max(stage.out / figures.egress_gbps, stage.uplink / figures.uplink_gbps) / 1e3
    if not stage.read or figures.read_us is None or figures.read_gbps is None:
        return sent
    return (0 if figures.transport == "pull" else sent) + figures.read_us + stage.read / figures.read_gbps / 1e3


def cost_us(algorithm: str, world: int, nbytes: int, dtype_bytes: int, islands: bool, figures: LinkFigures) -> float:
    """Modelled microseconds of one call. Stages add up: what a pipeline of lanes would hide is not subtracted."""
    total = figures.launch_us + figures.base_us
    for stage in stages(algorithm, world, nbytes, dtype_bytes, islands, figures.transport, figures.sum_copies):
        work = figures.stage_us + figures.source_us * stage.sources + stage.out / figures.sum_gbps / 1e3
        total += wire_us(stage, figures) + work
    return total


def serves(algorithm: str, world: int, islands: bool) -> bool:
    """Whether the algorithm can run: island needs two islands of equally many ranks, two at least."""
    return algorithm != "island" or (islands and world >= 4 and world % 2 == 0)


def candidates(world: int, islands: bool, algorithm: str = "auto", transport: str = "push") -> tuple[str, ...]:
    """What a call may be served by. Over two ranks two-shot moves what one-shot moves, in two passes instead of one."""
    if algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f"algorithm {algorithm!r} is none of auto, {', '.join(ALGORITHMS)}")
    names = ALGORITHMS if algorithm == "auto" else (algorithm,)
    if algorithm == "auto" and world == 2:
        names = ("one_shot",)
    return tuple(name for name in names if serves(name, world, islands and transport == "push"))


def cheapest(
    names: Iterable[str], world: int, nbytes: int, dtype_bytes: int, islands: bool, figures: LinkFigures
) -> str:
    """Of equally cheap ones the first."""
    return min(names, key=lambda name: cost_us(name, world, nbytes, dtype_bytes, islands, figures))


def step_for(tuned: Tuned, nbytes: int, dtype_bytes: int) -> Step | None:
    """None beyond the last step."""
    return next((step for step in tuned if step.dtype_bytes == dtype_bytes and nbytes <= step.up_to), None)


@lru_cache(maxsize=4096)
def choose(
    world: int,
    nbytes: int,
    dtype_bytes: int,
    islands: bool,
    figures: LinkFigures,
    area_packs: int,
    max_blocks: int,
    algorithm: str = "auto",
    tuned: Tuned = (),
) -> Plan | None:
    """The plan of a call of nbytes (> 0) on this rank; None where nothing fits the mailbox.

    All but max_blocks must be equal on all ranks; max_blocks shapes the launch and never the algorithm. A step is taken
    where "auto" was asked for and the step's algorithm serves and fits; else the cost model decides.
    """
    names = candidates(world, islands, algorithm, figures.transport)
    how = figures.transport, figures.sum_copies
    fitting = [name for name in names if packs_used(name, world, nbytes, dtype_bytes, *how) <= area_packs]
    if not fitting:
        return None
    step = step_for(tuned, nbytes, dtype_bytes) if algorithm == "auto" else None
    if step is not None and step.algorithm in fitting:
        best, threads = step.algorithm, step.threads
    else:
        best, threads = cheapest(fitting, world, nbytes, dtype_bytes, islands, figures), None
    if owners_of(best, world) > 1 and figures.transport == "push":
        return Plan(best, *owner_shape(lanes(best, world, nbytes), owners_of(best, world), max_blocks, threads))
    return Plan(best, *shape(best, lanes(best, world, nbytes), max_blocks, threads))


def shape(algorithm: str, lane_count: int, max_blocks: int, wanted: int | None = None) -> tuple[int, int]:
    """Blocks and data threads: small blocks start and synchronise faster and spread over the GPU, while they last.

    The bounds are measured: two H200, 14 KB to 1 MB, one-shot at 2 and 8 ranks, the others at 8. `wanted` threads take
    the place of that choice; lanes without a pack are cut off all the same.
    """
    if algorithm == "one_shot":
        spread_over = min(max_blocks, 64)
        threads = next((few for few in (64, 128) if few * spread_over >= lane_count), MAX_THREADS)
    else:
        threads = 128 if lane_count <= 2048 else MAX_THREADS
    most = min(max_blocks, USEFUL_BLOCKS)
    if most * threads < lane_count:
        threads = MAX_THREADS
    threads = threads if wanted is None else wanted
    blocks = max(1, min(most, -(-lane_count // threads)))
    evenly = -(-lane_count // blocks // WARP) * WARP
    return blocks, max(WARP, min(threads, evenly))


def owner_shape(places: int, owners: int, max_blocks: int, wanted: int | None = None) -> tuple[int, int]:
    """The same of pushes with owners, whose lanes have places in the shard of one owner each: whole warps of an owner,
    one a block while blocks last."""
    most = min(max_blocks, USEFUL_BLOCKS)
    needed = -(-places // (most * WARP)) if wanted is None else wanted // (owners * WARP)
    warps = max(1, min(needed, MAX_THREADS // (owners * WARP)))
    return max(1, min(most, -(-places // (warps * WARP)))), warps * owners * WARP


def waiting_blocks(multiprocessors: int, ranks_on_gpu: int) -> int:
    """Blocks that a call may have on a GPU so that, while those of all ranks on it but one wait for that one, there are
    multiprocessors left on which none waits: a matmul's block may need a whole one, or its cluster several, and whoever
    is waited for may have a matmul to run first. Of a GPU with one rank the same, for what runs on its other streams.
    """
    left_alone = multiprocessors // (32 if ranks_on_gpu == 1 else 8)
    return (multiprocessors - left_alone) // max(1, ranks_on_gpu - 1)


@lru_cache(maxsize=4096)
def chunks_plan(collective: str, world: int, nbytes: int, max_blocks: int) -> Plan:
    """The plan of a reduce-scatter or an all-gather of chunks of nbytes. Each has one algorithm, which pushes."""
    return Plan(collective, *owner_shape(packs_of(nbytes), world, max_blocks))


def owners_of(algorithm: str, world: int) -> int:
    """Among how many ranks an algorithm shares the sums: 1 where everyone sums everything."""
    return {"one_shot": 1, "two_shot": world, "island": world // 2}[algorithm]


def _slots(algorithm: str, world: int, dtype_bytes: int) -> int:
    half = world // 2
    return {"one_shot": world - 1, "two_shot": 2 * (world - 1), "island": 2 * (half - 1) + spread(dtype_bytes)}[
        algorithm
    ]
