"""What a call of each algorithm does to memory, counted from the protocol and not from the compiler's output.

An algorithm is added by a line in ALGORITHMS and a function of a few lines. Counts are of instructions in the code, not
of executions: a loop over packs is there once, and a loop over sources is unrolled, with the reader's own place in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from sm120.kernels import SHARES, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
PACK_BYTES = 16
SIGNATURE_WORDS = 4
RECORD_WORDS = 7 + 2 * SIGNATURE_WORDS + 1  # of the fault: what happened, both signatures, that it is valid


class Access(NamedTuple):
    """A kind of access to global memory."""

    opcode: str  # "LDG" or "STG"
    bytes: int
    scope: str  # "SYS", "GPU", "ACQUIRE" (of "SYS") or "" for a plain one


@dataclass(frozen=True)
class Steps:
    """Of one lane that has one pack of everything it may have to do. `again`: of them what stands in the code only for
    lanes of several packs."""

    sends: int  # packs stored into slots of peers
    looks: int  # slots polled, over all stages; every stage has one place that looks, first and again
    stages: int  # that wait
    alone: int  # of them, those that await a single slot
    reads: int  # packs of the caller's input
    writes: int  # packs of the caller's output, NaN among them
    again: tuple[int, int, int] = (0, 0, 0)  # reads, looks, stages
    once: int = 0  # and writes; then one stage more awaits a single slot
    staged: bool = False  # slabs lie in host memory, whose re-arming ends with a fence; four phases
    ahead: int = 0  # loops in which the last warp looks ahead for its block, over a link, and says so in shared memory
    flags: int = 0  # stages that flags announce, each behind a fence
    codes: int = 0  # packs given out as FP8, NaN among them, each with the scale of its group


def one_shot(world: int, _: int) -> Steps:
    # Read to be sent (the first before the call's state is known, the others one ahead), and once more to be summed: a
    # lane may have more packs than it has registers for.
    return Steps(sends=world - 1, looks=world, stages=1, alone=0, reads=2 + 1, writes=1 + 1, again=(1, 0, 0))


def fused_one_shot(world: int, _: int) -> Steps:
    plain = one_shot(world, 0)
    # The first residual and weight early, the others late; a normed pack, and NaN twice where there was one.
    return replace(plain, reads=plain.reads + 2 + 2, writes=plain.writes + 1 + 1, again=(1 + 2, 0, 0), codes=1 + 1)


AT_ONCE = 4  # sums of an owner that a lane of several places looks at together


def two_shot(world: int, _: int) -> Steps:
    # To an owner, and a sum to everybody; from everybody, and sums of an owner. The first unit is read early, others
    # one ahead, and own ones that are not the first. The own sum is written, those of an owner, NaN in both places.
    return Steps(
        sends=1 + world - 1,
        looks=world + AT_ONCE,
        stages=2,
        alone=0,
        reads=1 + 1 + 1,
        writes=1 + AT_ONCE + 2,
        again=(1, AT_ONCE - 1, 0),
        once=AT_ONCE - 1,
    )


def reduce_scatter(world: int, _: int) -> Steps:
    # To an owner; from everybody. Read to be sent, the first early and others one ahead, and once more to be summed.
    return Steps(sends=1, looks=world, stages=1, alone=0, reads=1 + 1 + 1, writes=1 + 1, again=(1, 0, 0))


def all_gather(world: int, _: int) -> Steps:
    # To one reader, or to the own output; from an owner. NaN in one place for all.
    return Steps(
        sends=1,
        looks=AT_ONCE,
        stages=1,
        alone=0,
        reads=1 + 2,
        writes=1 + AT_ONCE + 1,
        again=(2, AT_ONCE - 1, 0),
        once=AT_ONCE - 1,
    )


def fused_parts(plain: Steps) -> Steps:
    # A residual and a weight; a normed pack, and NaN twice in two places.
    return replace(plain, reads=plain.reads + 2, writes=plain.writes + 1 + 2, codes=1 + 2)


def fused_two_shot(world: int, element_bytes: int) -> Steps:
    return fused_parts(two_shot(world, element_bytes))


def island(world: int, element_bytes: int) -> Steps:
    half = world // 2
    spread = 4 // element_bytes  # packs of float32 that one pack becomes
    # The own island's partial is summed twice: to be sent, and when the partner's has come.
    return Steps(
        sends=1 + half - 1 + spread,
        looks=2 * half + spread + AT_ONCE,
        stages=4,
        alone=int(spread == 1),
        reads=1 + 1 + 2,
        writes=1 + AT_ONCE + 2,
        again=(1 + 1, half + AT_ONCE - 1, 1),
        once=AT_ONCE - 1,
    )


def fused_island(world: int, element_bytes: int) -> Steps:
    return fused_parts(island(world, element_bytes))


def staged_one_shot(world: int, _: int) -> Steps:
    # It looks ahead before the signatures and behind them.
    return Steps(sends=1, looks=world, stages=1, alone=0, reads=2 + 1, writes=1 + 1, staged=True, ahead=2)


def staged_two_shot(world: int, _: int) -> Steps:
    shards = world - 1
    return Steps(
        sends=shards + 1,
        looks=2 * world,
        stages=2,
        alone=0,
        reads=2 * shards + 1,
        writes=1 + world + 1,
        staged=True,
        ahead=3,
    )


def pull_one_shot(world: int, _: int) -> Steps:
    return Steps(sends=1, looks=world, stages=1, alone=0, reads=2 + 1, writes=1 + 1, flags=1)


def pull_two_shot(world: int, _: int) -> Steps:
    shards = world - 1
    return Steps(
        sends=shards + 1, looks=2 * world, stages=2, alone=0, reads=2 * shards + 1, writes=1 + world + 1, flags=2
    )


ALGORITHMS: dict[str, tuple[Callable[[int, int], Steps], tuple[int, ...]]] = {
    "one_shot": (one_shot, (2, 3, 4, 5, 6, 7, 8)),
    "fused_one_shot": (fused_one_shot, (2, 3, 4, 5, 6, 7, 8)),
    "two_shot": (two_shot, (2, 3, 4, 5, 6, 7, 8)),
    "fused_two_shot": (fused_two_shot, (2, 3, 4, 5, 6, 7, 8)),
    "island": (island, (4, 6, 8)),
    "fused_island": (fused_island, (4, 6, 8)),
    "reduce_scatter": (reduce_scatter, (2, 3, 4, 5, 6, 7, 8)),
    "all_gather": (all_gather, (2, 3, 4, 5, 6, 7, 8)),
    "staged_one_shot": (staged_one_shot, (2, 3, 4, 5, 6, 7, 8)),
    "staged_two_shot": (staged_two_shot, (2, 3, 4, 5, 6, 7, 8)),
    "pull_one_shot": (pull_one_shot, (2, 3, 4, 5, 6, 7, 8)),
    "pull_two_shot": (pull_two_shot, (2, 3, 4, 5, 6, 7, 8)),
}


def variants(algorithm: str) -> Iterator[Variant]:
    for world in ALGORITHMS[algorithm][1]:
        for dtype in ELEMENT_BYTES:
            if algorithm == "all_gather" and dtype != "bfloat16":
                continue  # one kernel serves all
            if algorithm in ("fused_two_shot", "fused_island"):
                yield Variant(algorithm, dtype, world, SHARES[0], clustered=True)
                continue
            if algorithm.startswith("fused"):
                for share in SHARES[:2]:
                    yield Variant(algorithm, dtype, world, share, clustered=False)
                    yield Variant(algorithm, dtype, world, share, clustered=True)
                continue
            for share in SHARES[1:] if algorithm.startswith(("staged", "pull")) else SHARES:
                yield Variant(algorithm, dtype, world, share)


# The block's state, and how long a peer was waited for.
STATE = {
    Access("LDG", 16, "GPU"): (1 + 1, 1 + 1),  # of 24 bytes
    Access("LDG", 8, "GPU"): (1, 1),
    Access("STG", 16, "GPU"): (1 + 1, 1 + 1),
    Access("STG", 8, "GPU"): (1, 1),
}
STAGED_STATE = {
    Access("LDG", 16, "GPU"): (2 + 1, 2 + 1),  # of 28 bytes
    Access("STG", 16, "GPU"): (2 + 1, 2 + 1),
    Access("LDG", 4, "GPU"): (1, 2),  # what the first block says of signatures, in a loop
    Access("STG", 4, "GPU"): (1, 1),  # which says it
}


def steps_of(variant: Variant) -> Steps:
    steps = ALGORITHMS[variant.algorithm][0](variant.world, ELEMENT_BYTES[variant.dtype])
    if variant.share != SHARES[0]:
        return steps
    reads, looks, stages = steps.again
    return replace(
        steps,
        reads=steps.reads - reads,
        looks=steps.looks - looks,
        stages=steps.stages - stages,
        writes=steps.writes - steps.once,
        alone=steps.alone + (steps.once > 0),
    )


def _flags(stages: int) -> dict[Access, tuple[int, int]]:
    """Those awaited, in a loop that may be turned around; those raised, and one for a block that is not there."""
    if not stages:
        return {}
    return {
        Access("LDG", 4, "ACQUIRE"): (stages, 2 * stages),
        Access("STG", 4, "SYS"): (stages + 1, stages + 1),
    }


def _fp8(codes: int, element_bytes: int) -> dict[Access, tuple[int, int]]:
    """Behind a branch that a call without FP8 does not take. A scale that was given is read."""
    if codes == 0:
        return {}
    scales = codes * (2 if element_bytes == 4 else 1)  # a pack of float32 becomes as many bytes as a scale has
    return {
        Access("LDG", 4, ""): (1, 1),
        Access("STG", 4, ""): (scales, scales),
        **({} if element_bytes == 4 else {Access("STG", 8, ""): (codes, codes)}),
    }


def on_the_path(variant: Variant) -> dict[Access, tuple[int, int]]:
    """At least and at most so many, where a lane comes that has not waited for long: a call whose peers are in time.
    Kinds of access that are not named must not occur there."""
    element = ELEMENT_BYTES[variant.dtype]
    steps = steps_of(variant)
    width, pieces = (element, PACK_BYTES // element) if variant.share == SHARES[2] else (PACK_BYTES, 1)
    sends = steps.sends + 1 + 1  # the signature; the re-arming
    looks = steps.looks + steps.ahead + 1  # the signature
    copies = (
        steps.alone + steps.ahead + 1
    )  # a loop that polls one slot may be turned around, and then has its load twice
    return {
        Access("STG", 16, "SYS"): (sends, sends),
        Access("LDG", 16, "SYS"): (looks, looks + copies),
        Access("LDG", width, ""): (steps.reads * pieces, steps.reads * pieces),
        Access("STG", width, ""): (steps.writes * pieces, steps.writes * pieces),
        Access("LDG", 4, "SYS"): (1, 1),  # this rank's failure mark
        **_flags(steps.flags),
        **_fp8(steps.codes, element),
        **(STAGED_STATE if steps.staged else STATE),
    }


def beside_the_path(variant: Variant) -> dict[Access, tuple[int, int]]:
    """The same for the rest: a lane that has waited for long, and a rank that fails. Every count is of rolled loops."""
    steps = steps_of(variant)
    early = 1 + steps.staged  # waits for signatures; staged, that for what the first block says of them
    waits = steps.stages + early
    elected = 1 + 1 + 2 * SIGNATURE_WORDS  # loads of who writes the record: abort words, an accused's, signatures
    return {
        Access("LDG", 16, "SYS"): (1, early),  # whose signature differs
        Access("LDG", 4, "SYS"): (1 + elected, waits + elected),  # abort words that a wait looks at
        Access("STG", 4, "SYS"): (1 + RECORD_WORDS, 1 + RECORD_WORDS),  # an abort word a peer, the record
    }
