"""The plan's arithmetic against the native layouts, its bytes against the algorithms retold, its choices in a table."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pcie_allreduce import _C
from pcie_allreduce.plan import (
    ALGORITHMS,
    MAX_THREADS,
    TRANSPORTS,
    USEFUL_BLOCKS,
    LinkFigures,
    Plan,
    Step,
    Tuned,
    area_packs_for,
    candidates,
    choose,
    cost_us,
    lanes,
    memory_bytes,
    owner_shape,
    packs_used,
    serves,
    shape,
    stages,
    step_for,
    waiting_blocks,
)
from pcie_allreduce.presets import PRESETS
from pcie_allreduce.traffic import Islands, across, packs_sent

KB, MB = 1024, 1 << 20
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
CODES = {"one_shot": 1, "two_shot": 2, "island": 3}
DTYPE_CODES = {4: 0, 2: 2}
SIZES = (1, 16, 17, 100, 127, 128, 129, 1000, 14336, 43008, 57344, 131072, 131074, 2 * MB)
SERVED = [(algorithm, world) for algorithm in ALGORITHMS for world in range(2, 9) if serves(algorithm, world, True)]
EVEN_AND_ODD: Islands = (frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7}))


def halves(world: int) -> Islands:
    return frozenset(range(world // 2)), frozenset(range(world // 2, world))


def plan_for(preset: str, world: int, nbytes: int, dtype_bytes: int = 2, algorithm: str = "auto") -> Plan:
    known = PRESETS[preset]
    islands = known.islands and serves("island", world, True)
    area = area_packs_for(world, 4 * MB, algorithm)
    plan = choose(world, nbytes, dtype_bytes, islands, known.figures, area, 128, algorithm)
    assert plan is not None
    return plan


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("algorithm", "world"), SERVED)
def test_layouts_are_the_native_ones(algorithm: str, world: int, transport: str) -> None:
    if algorithm not in candidates(world, True, algorithm, transport):
        return
    for nbytes, dtype_bytes in itertools.product(SIZES, (2, 4)):
        code = TRANSPORTS.index(transport)
        native = _C.packs_used(CODES[algorithm], DTYPE_CODES[dtype_bytes], world, nbytes, code)
        assert packs_used(algorithm, world, nbytes, dtype_bytes, transport) == native, (nbytes, dtype_bytes)
        if transport == "staged":
            native = _C.packs_used(CODES[algorithm], DTYPE_CODES[dtype_bytes], world, nbytes, code, world // 2)
            assert packs_used(algorithm, world, nbytes, dtype_bytes, transport, world // 2) == native


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_memory_is_the_native_one(transport: str) -> None:
    for area in (8, 1000, 262152):
        assert memory_bytes(area, transport) == _C.slab_bytes(area, TRANSPORTS.index(transport))


def test_pull_costs_a_round_trip_a_stage_and_what_is_read() -> None:
    figures = PRESETS["pcie5-switch"].figures._replace(transport="pull")
    assert figures.read_us is not None
    assert figures.read_gbps is not None
    kernel = figures.launch_us + figures.base_us
    stage = figures.stage_us + figures.source_us * 7 + figures.read_us
    read = 43008 / figures.read_gbps / 1e3
    assert math.isclose(cost_us("one_shot", 8, 43008, 2, False, figures), kernel + stage + 7 * read)
    assert math.isclose(cost_us("two_shot", 8, 43008, 2, False, figures), kernel + 2 * stage + 2 * 7 / 8 * read)


def test_pull_serves_without_islands_in_a_few_payloads() -> None:
    assert candidates(8, True, "auto", "pull") == ("one_shot", "two_shot")
    assert candidates(8, True, "island", "pull") == ()
    assert memory_bytes(area_packs_for(8, 2 * MB, transport="pull"), "pull") <= 2 * 2 * MB * 9 / 8 + 20_000


def test_memory_for_everything_at_2_mb_stays_under_16_mb() -> None:
    needed = {world: memory_bytes(area_packs_for(world, 2 * MB)) for world in range(2, 9)}
    assert max(needed.values()) <= 16_000_000
    assert needed[8] == 12288 + 3 * 16 * (8 + 8 * 32768)  # two islands of four, partial sums of a 16-bit type


@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_memory_for_64_kb_at_8_ranks_stays_under_4_mb(algorithm: str) -> None:
    assert memory_bytes(area_packs_for(8, 64 * KB, algorithm)) <= 4_000_000


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("max_bytes", [16, 4 * KB, 64 * KB, 256 * KB, 2 * MB])
def test_the_mailbox_holds_whatever_the_plan_chooses(world: int, max_bytes: int) -> None:
    area = area_packs_for(world, max_bytes)
    for preset, dtype_bytes, forced in itertools.product(PRESETS.values(), (2, 4), (False, True)):
        islands = (preset.islands or forced) and serves("island", world, True)
        for nbytes in {16, max_bytes // 2, max_bytes}:
            plan = choose(world, nbytes, dtype_bytes, islands, preset.figures, area, 48)
            assert plan is not None
            assert packs_used(plan.algorithm, world, nbytes, dtype_bytes) <= area
    for algorithm in ALGORITHMS:
        if serves(algorithm, world, True):
            area = area_packs_for(world, max_bytes, algorithm)
            asked = choose(world, max_bytes, 2, True, PRESETS["nvlink"].figures, area, 48, algorithm)
            assert asked is not None
            assert asked.algorithm == algorithm


def test_the_mailbox_keeps_the_cheapest_wherever_a_preset_crosses_over() -> None:
    """One-shot's bounded room changes no choice but on GPUs that NVLink joins, more than two of them."""
    for preset, world in itertools.product(PRESETS.values(), range(2, 9)):
        if preset.name == "nvlink":
            continue
        islands = preset.islands and serves("island", world, True)
        for nbytes, max_bytes in itertools.product((4 * KB, 14336, 43008, 256 * KB), (16 * KB, 64 * KB, 256 * KB)):
            about = (world, nbytes, 2, islands, preset.figures)
            if nbytes <= max_bytes:
                area = area_packs_for(world, max_bytes)
                assert choose(*about, area, 64) == choose(*about, 1 << 30, 64), (preset.name, max_bytes, about)


def test_nothing_fits_and_nothing_serves() -> None:
    figures = PRESETS["pcie5-switch"].figures
    assert choose(8, MB, 2, False, figures, 1000, 48) is None
    assert choose(8, 1024, 2, False, figures, 10_000, 48, "island") is None
    with pytest.raises(ValueError, match="algorithm 'ring' is none of auto, one_shot, two_shot, island"):
        choose(8, 1024, 2, False, figures, 10_000, 48, "ring")
    with pytest.raises(ValueError, match="'island' does not serve 5 ranks"):
        area_packs_for(5, 1024, "island")


def retold(
    algorithm: str, world: int, nbytes: int, dtype_bytes: int, islands: Islands, unit_packs: int
) -> list[list[int]]:
    """The loops of csrc/protocol/*.h over every lane of every rank, counting each put."""
    units = -(-nbytes // (16 * unit_packs))
    shard = packs_lane_count(algorithm, world, nbytes) // unit_packs
    count = [[1 if a != b else 0 for b in range(world)] for a in range(world)]
    for rank in range(world):
        group = (
            sorted(next(ranks for ranks in islands if rank in ranks)) if algorithm == "island" else list(range(world))
        )
        place = group.index(rank)
        if algorithm == "one_shot":
            for peer in group:
                count[rank][peer] += units * unit_packs * (peer != rank)
            continue
        for i in range(shard):
            for owner, peer in enumerate(group):
                if peer != rank and owner * shard + i < units:
                    count[rank][peer] += unit_packs  # scatter
                if peer != rank and place * shard + i < units:
                    count[rank][peer] += unit_packs  # gather
            if algorithm == "island" and place * shard + i < units:
                partner = sorted(next(ranks for ranks in islands if rank not in ranks))[place]
                count[rank][partner] += unit_packs * (4 // dtype_bytes)
    return count


def packs_lane_count(algorithm: str, world: int, nbytes: int) -> int:
    owners = {"one_shot": 1, "two_shot": world, "island": world // 2}[algorithm]
    return math.ceil(math.ceil(math.ceil(nbytes / 16) / owners) / 8) * 8


@pytest.mark.parametrize(("algorithm", "world"), SERVED)
def test_exact_traffic_is_that_of_the_loops(algorithm: str, world: int) -> None:
    islands = EVEN_AND_ODD if world == 8 else halves(world)
    for nbytes, dtype_bytes, unit_packs in itertools.product((1, 16, 200, 1000, 4097, 14336), (2, 4), (1, 4)):
        expected = retold(algorithm, world, nbytes, dtype_bytes, islands, unit_packs)
        assert packs_sent(algorithm, world, nbytes, dtype_bytes, islands, unit_packs) == expected, (nbytes, unit_packs)


def test_formulas_at_43008_bytes_over_8_ranks() -> None:
    s = 43008
    bytes_out = {name: sum(stage.out for stage in stages(name, 8, s, 2, True)) for name in ALGORITHMS}
    assert bytes_out == {"one_shot": 7 * s, "two_shot": 2 * 7 / 8 * s, "island": 2 * s}
    uplink = {name: sum(stage.uplink for stage in stages(name, 8, s, 2, True)) for name in ALGORITHMS}
    assert uplink == {"one_shot": 16 * s, "two_shot": 4 * s, "island": 2 * s}
    assert sum(stage.uplink for stage in stages("island", 8, s, 4, True)) == s  # float32 partials of float32
    assert all(stage.uplink == 0 for name in ("one_shot", "two_shot") for stage in stages(name, 8, s, 2, False))


@pytest.mark.parametrize(("algorithm", "world"), SERVED)
@pytest.mark.parametrize("dtype_bytes", [2, 4])
def test_formulas_are_the_exact_traffic_of_whole_shards(algorithm: str, world: int, dtype_bytes: int) -> None:
    """Without tails both agree to the byte, but for one signature a pair of ranks."""
    islands = halves(world) if world % 2 == 0 and world > 2 else None
    nbytes = 128 * world * 8
    sent = packs_sent(algorithm, world, nbytes, dtype_bytes, islands)
    passes = stages(algorithm, world, nbytes, dtype_bytes, islands is not None)
    for rank in range(world):
        assert 16 * (sum(sent[rank]) - (world - 1)) == sum(stage.out for stage in passes)
    if islands is not None:
        signatures = 16 * (world // 2) ** 2
        assert across(sent, islands) - signatures == sum(stage.uplink for stage in passes)


def test_cost_by_hand() -> None:
    figures = LinkFigures(1.0, 2.0, 0.5, 0.25, 10.0, 20.0, 1.0, 2.0, 4.0, None, None)
    # 8 ranks, 8,000 bytes; GB/s are bytes a nanosecond: 56,000 B out at 1 GB/s take 56 us, 128,000 B at 2 GB/s 64 us
    assert cost_us("one_shot", 8, 8000, 2, False, figures) == 1 + 2 + (0.5 + 7 * 0.25) + 10 + 56 + 14
    assert cost_us("one_shot", 8, 8000, 2, True, figures) == 1 + 2 + (0.5 + 7 * 0.25) + 20 + 64 + 14
    assert cost_us("two_shot", 8, 8000, 2, True, figures) == 1 + 2 + 2 * (0.5 + 7 * 0.25 + 20 + 8 + 7 / 4)
    inside = 0.5 + 3 * 0.25 + 10 + 6 + 6 / 4
    across_them = 0.5 + 2 * 0.25 + 20 + 8 + 4 / 4  # 16,000 B over the uplink, 4,000 B out of each rank
    assert cost_us("island", 8, 8000, 2, True, figures) == 1 + 2 + 2 * inside + across_them


# Sizes up to which an algorithm is chosen, in bytes, from 1 KB to 4 MB. bf16.
ONE, TWO, ISLAND = ALGORITHMS
TABLE = [
    ("pcie5-switch", 2, [(4 * MB, ONE)]),
    ("pcie5-switch", 3, [(64 * KB, ONE), (4 * MB, TWO)]),
    ("pcie5-switch", 4, [(32 * KB, ONE), (4 * MB, TWO)]),
    ("pcie5-switch", 8, [(14336, ONE), (4 * MB, TWO)]),
    ("pcie5-cpu", 2, [(4 * MB, ONE)]),
    ("pcie5-cpu", 4, [(43008, ONE), (4 * MB, TWO)]),
    ("pcie5-cpu", 8, [(16 * KB, ONE), (4 * MB, TWO)]),
    ("pcie5-4+4", 2, [(4 * MB, ONE)]),
    ("pcie5-4+4", 3, [(64 * KB, ONE), (4 * MB, TWO)]),
    ("pcie5-4+4", 4, [(43008, ONE), (4 * MB, TWO)]),
    ("pcie5-4+4", 8, [(8 * KB, ONE), (4 * MB, ISLAND)]),
    ("pcie5-dual-socket", 4, [(43008, ONE), (4 * MB, TWO)]),
    ("pcie5-dual-socket", 8, [(8 * KB, ONE), (64 * KB, TWO), (4 * MB, ISLAND)]),
    ("pcie4-switch", 8, [(4 * KB, ONE), (4 * MB, TWO)]),
    ("pcie4-4+4", 8, [(4 * KB, ONE), (4 * MB, ISLAND)]),
    ("nvlink", 2, [(4 * MB, ONE)]),
    ("nvlink", 4, [(256 * KB, ONE), (4 * MB, TWO)]),
    ("nvlink", 8, [(64 * KB, ONE), (4 * MB, TWO)]),
    ("emulated", 2, [(4 * MB, ONE)]),
    ("emulated", 8, [(43008, ONE), (4 * MB, TWO)]),
    ("cpu", 2, [(4 * MB, ONE)]),
    ("cpu", 3, [(16 * KB, ONE), (4 * MB, TWO)]),
    ("cpu", 4, [(14336, ONE), (4 * MB, TWO)]),
    ("cpu", 8, [(4 * KB, ONE), (4 * MB, TWO)]),
]
LADDER = sorted({*(1 << power for power in range(10, 23)), 14336, 43008, 57344})


@pytest.mark.parametrize(("preset", "world", "expected"), TABLE)
def test_choices(preset: str, world: int, expected: list[tuple[int, str]]) -> None:
    known = PRESETS[preset]
    islands = known.islands and serves("island", world, True)
    chosen = {}
    for nbytes in LADDER:
        plan = choose(world, nbytes, 2, islands, known.figures, 1 << 30, 128)
        assert plan is not None
        chosen[nbytes] = plan.algorithm
    assert chosen == {nbytes: next(name for most, name in expected if nbytes <= most) for nbytes in LADDER}


def test_float32_islands_pay_earlier_because_their_partials_are_no_larger() -> None:
    assert plan_for("pcie5-dual-socket", 8, 43008, 2).algorithm == "two_shot"
    assert plan_for("pcie5-dual-socket", 8, 43008, 4).algorithm == "island"


@pytest.mark.parametrize("preset", PRESETS)
def test_the_algorithm_does_not_depend_on_how_a_rank_can_launch(preset: str) -> None:
    known = PRESETS[preset]
    for world, nbytes in itertools.product(range(2, 9), LADDER):
        islands = known.islands and serves("island", world, True)
        about = (world, nbytes, 2, islands, known.figures, area_packs_for(world, 4 * MB))
        plans = [choose(*about, blocks) for blocks in (1, 5, 33, 128)]
        assert len({plan.algorithm for plan in plans if plan is not None}) == 1
        assert None not in plans


# (ranks, bytes, blocks, threads): the best found on two H200, one-shot.
MEASURED = [
    (2, 14336, 14, 64),
    (2, 43008, 42, 64),
    (2, 57344, 56, 64),
    (2, 131072, 64, 128),
    (2, 262144, 64, 256),
    (2, 524288, 128, 256),
]


@pytest.mark.parametrize(("world", "nbytes", "blocks", "threads"), MEASURED)
def test_shapes_of_one_shot_are_the_measured_ones(world: int, nbytes: int, blocks: int, threads: int) -> None:
    assert plan_for("nvlink", world, nbytes, algorithm="one_shot") == Plan("one_shot", blocks, threads)


@pytest.mark.parametrize("owners", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("max_blocks", [1, 7, 33, 128])
@pytest.mark.parametrize("wanted", [None, 32, 128, 256])
def test_owners_have_whole_warps_of_their_own(owners: int, max_blocks: int, wanted: int | None) -> None:
    for places in (8, 32, 40, 336, 1024, 4096, 16384):
        blocks, threads = owner_shape(places, owners, max_blocks, wanted)
        assert 1 <= blocks <= max_blocks
        assert threads % (32 * owners) == 0
        assert threads <= MAX_THREADS
        assert (blocks - 1) * threads < places * owners, "a block has nothing to do"
        if wanted is None and max_blocks * (MAX_THREADS // (32 * owners)) * 32 >= places:
            assert blocks * threads >= places * owners, "a lane has several places, and need not"


@pytest.mark.parametrize("multiprocessors", [20, 46, 84, 108, 128, 132, 148, 170, 188])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_whoever_is_waited_for_finds_multiprocessors_on_which_nobody_waits(multiprocessors: int, ranks: int) -> None:
    """Eight ranks on one H200 with 21 blocks each once waited for the eighth's matmul, which found none."""
    blocks = waiting_blocks(multiprocessors, ranks)
    free = multiprocessors - blocks * max(1, ranks - 1)
    assert blocks >= 1
    assert free >= (multiprocessors // 8 if ranks > 1 else 0)
    assert ranks > 1 or (multiprocessors >= 32) == (free > 0)


def test_an_h200_of_its_own_has_the_blocks_that_were_measured_to_be_best() -> None:
    assert waiting_blocks(132, 1) == USEFUL_BLOCKS


def test_owners_have_one_warp_a_block_while_blocks_last() -> None:
    assert owner_shape(336, 8, 128) == (11, 256)
    assert owner_shape(336, 4, 128) == (11, 128)
    assert owner_shape(336, 4, 8) == (6, 256)
    assert owner_shape(4096, 8, 128) == (128, 256)
    assert owner_shape(4096, 8, 33) == (33, 256)
    assert plan_for("pcie5-switch", 8, 43008, algorithm="two_shot") == Plan("two_shot", 11, 256)


@pytest.mark.parametrize("max_blocks", [1, 2, 7, 33, 128])
def test_shapes_are_launchable_and_waste_less_than_a_warp_a_block(max_blocks: int) -> None:
    for nbytes in (*range(1, 3000, 13), *LADDER):
        count = lanes("one_shot", 8, nbytes)
        blocks, threads = shape("one_shot", count, max_blocks)
        assert 1 <= blocks <= max_blocks
        assert threads in range(32, 257, 32)
        assert (blocks * threads < count + 32 * blocks) or threads == 32
        assert blocks * threads >= count or threads == 256


# A table that was measured

STEPS: Tuned = (
    Step(2, 4 * KB, "two_shot", 64),
    Step(2, 64 * KB),
    Step(2, MB, "island", fallback=True),
    Step(4, 8 * KB, "two_shot"),
)


def tuned_plan(nbytes: int, dtype_bytes: int = 2, algorithm: str = "auto", tuned: Tuned = STEPS) -> Plan:
    figures = PRESETS["pcie5-dual-socket"].figures
    plan = choose(8, nbytes, dtype_bytes, True, figures, area_packs_for(8, 4 * MB), 128, algorithm, tuned)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("nbytes", "dtype_bytes", "expected"),
    [
        (1, 2, "two_shot"),
        (4 * KB, 2, "two_shot"),
        (4 * KB + 2, 2, ONE),  # the untuned plan, which a step has left in place
        (64 * KB, 2, TWO),
        (64 * KB + 2, 2, "island"),
        (MB, 2, "island"),
        (8 * KB, 4, "two_shot"),
        (16 * KB, 4, tuned_plan(16 * KB, 4, tuned=()).algorithm),  # beyond the last step
        (2 * MB, 2, tuned_plan(2 * MB, tuned=()).algorithm),
    ],
)
def test_a_table_decides_up_to_its_last_step(nbytes: int, dtype_bytes: int, expected: str) -> None:
    assert tuned_plan(nbytes, dtype_bytes).algorithm == expected


def test_steps_are_told_with_their_fallback() -> None:
    assert step_for(STEPS, 64 * KB + 2, 2) == STEPS[2]
    assert step_for(STEPS, MB + 2, 2) is None
    assert step_for(STEPS, 1, 4) == STEPS[3]
    assert step_for((), 1, 2) is None


def test_an_algorithm_that_was_asked_for_is_not_overruled() -> None:
    assert tuned_plan(KB, algorithm="one_shot") == tuned_plan(KB, algorithm="one_shot", tuned=())


def test_a_step_that_does_not_serve_or_fit_leaves_the_cost_model_in_charge() -> None:
    figures = PRESETS["pcie5-switch"].figures
    about = (8, 43008, 2, False, figures, area_packs_for(8, 64 * KB), 128)
    assert choose(*about, "auto", (Step(2, MB, "island"),)) == choose(*about)
    large = (8, 512 * KB, 2, False, figures, area_packs_for(8, 512 * KB), 128)
    assert choose(*large, "auto", (Step(2, MB, "one_shot"),)) == choose(*large)
    pair = (2, 1024, 2, False, figures, area_packs_for(2, 1024), 128)
    assert choose(*pair, "auto", (Step(2, MB, "two_shot"),)) == choose(*pair)
    assert choose(8, MB, 2, False, figures, 1000, 48, "auto", (Step(2, 2 * MB, "one_shot"),)) is None


def test_the_algorithm_of_a_step_does_not_depend_on_how_a_rank_can_launch() -> None:
    figures = PRESETS["pcie5-switch"].figures
    for nbytes, threads in itertools.product(LADDER, (None, 32, 96, MAX_THREADS)):
        about = (8, nbytes, 2, False, figures, area_packs_for(8, 4 * MB))
        plans = [choose(*about, blocks, "auto", (Step(2, 4 * MB, "two_shot", threads),)) for blocks in (1, 5, 33, 128)]
        assert {plan.algorithm for plan in plans if plan is not None} == {"two_shot"}
        assert None not in plans


@pytest.mark.parametrize("threads", range(32, MAX_THREADS + 1, 32))
@pytest.mark.parametrize("max_blocks", [1, 7, 128])
def test_asked_threads_are_launchable_and_the_most_that_are_taken(threads: int, max_blocks: int) -> None:
    for nbytes in LADDER:
        count = lanes("one_shot", 8, nbytes)
        blocks, taken = shape("one_shot", count, max_blocks, threads)
        assert 1 <= blocks <= max_blocks
        assert taken in range(32, threads + 1, 32)
        assert blocks * taken >= count or taken == threads
        assert blocks * taken < count + 32 * blocks or taken == 32


@pytest.mark.parametrize(
    "values",
    [(3, 1024), (2, 0), (2, 1024.0), (True, 1024), (2, 1024, "ring"), (2, 1024, "auto", 33), (2, 1024, "auto", 288),
     (2, 1024, "auto", 0), (2, 1024, "auto", "64"), (2, 1024, "auto", None, 1), ("2", 1024), (2, 1024, ["auto"])],
)  # fmt: skip
def test_a_step_is_made_of_nothing_else(values: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"no step of a tuned table|no multiple of 32 up to 256"):
        Step(*values)


def test_untuned_it_is_near_the_best_that_was_measured_at_eight_ranks() -> None:
    """Emulated on two GPUs, by algorithm; launch shapes are `tune`'s to compare."""
    rows = json.loads((RESULTS / "h200x2-ranks8.json").read_text())["rows"]
    measured: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["backend"] == "pcie_allreduce" and row["mode"] == "graph":
            measured.setdefault(row["bytes"], {})[row["algorithm"]] = row["us_median"]
    assert set(measured) >= {14336, 43008, 57344, 131072, 524288}
    for nbytes, times in measured.items():
        assert set(times) == set(ALGORITHMS)
        chosen = plan_for("emulated", 8, nbytes).algorithm
        assert times[chosen] <= 1.1 * min(times.values()), (nbytes, chosen, times)
