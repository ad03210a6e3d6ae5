"""Which calls are fused, and in which launch shape: the same answer on every rank, and never one that does not fit."""

from __future__ import annotations

import pytest

from pcie_allreduce import _C
from pcie_allreduce.fused_plan import (
    MAX_BLOCKS,
    MAX_HIDDEN,
    MAX_SHARED,
    NORM_US,
    FusedPlan,
    Shape,
    choose_fused,
    common,
    fused_shape,
    part_packs,
    part_shape,
    shared_bytes,
)
from pcie_allreduce.plan import Step, area_packs_for, choose, cost_us
from pcie_allreduce.presets import PRESETS

SWITCH = PRESETS["pcie5-switch"].figures
ONE_SHOT = ("one_shot",)
ALL = ("one_shot", "two_shot", "island")
SHAPES = (
    Shape(1, 608, 64),
    *(Shape(c, t, 240 // c) for t in (128, 256) for c in range(2, 9)),
    *(Shape(c, 256, 240 // c, "two_shot") for c in range(2, 9)),
    *(Shape(c, t, 240 // c, "island") for t in (128, 256) for c in range(2, 9)),
)
ROW_SHAPES = tuple(shape for shape in SHAPES if shape.algorithm == "one_shot")
GPU = ("one_shot", "two_shot")
FAR = PRESETS["pcie5-4+4"].figures


def chosen(
    world: int,
    rows: int,
    hidden: int = 7168,
    algorithms: tuple[str, ...] = ONE_SHOT,
    shapes: tuple[Shape, ...] | None = SHAPES,
    **more: object,
) -> FusedPlan | None:
    area = area_packs_for(world, 2 << 20)
    return choose_fused(world, rows, hidden, 2, False, SWITCH, area, algorithms, shapes, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", [8, 24, 4096, 5120, 6144, 7168, 8192, 16384])
@pytest.mark.parametrize("rows", [1, 3, 8, 16, 32, 33])
@pytest.mark.parametrize(("algorithm", "owners"), [("two_shot", 8), ("island", 4)])
def test_a_team_has_a_lane_for_every_pack_of_its_row(algorithm: str, owners: int, hidden: int, rows: int) -> None:
    packs = hidden * 2 // 16
    part = part_packs(packs, owners)
    assert part % 8 == 0
    assert part * owners >= packs
    shape = part_shape(rows, part, owners, tuple(shape for shape in SHAPES if shape.algorithm == algorithm))
    if shape is None:
        assert rows * -(-part // (256 // owners)) > MAX_BLOCKS
        return
    teams, cluster, threads = shape
    assert teams == rows
    assert threads % (32 * owners) == 0
    assert cluster * threads // owners >= part
    assert cluster == 2 or (cluster - 1) * threads // owners < part, "a block has nothing to do"
    assert rows * cluster <= MAX_BLOCKS


def test_two_shot_is_fused_where_it_is_chosen_and_fits() -> None:
    assert chosen(8, 3, algorithms=GPU) == FusedPlan("two_shot", 3, 4, 256)
    assert chosen(8, 32, algorithms=GPU) == FusedPlan("two_shot", 32, 4, 256)
    assert chosen(8, 33, algorithms=GPU) is None, "more blocks than a launch has"
    assert chosen(8, 3, algorithms=GPU, shapes=(Shape(4, 256, 2, "two_shot"),)) is None, "not all at once"


def test_islands_are_fused_where_they_are_chosen_and_fit() -> None:
    def among(*algorithms: str, rows: int = 3, shapes: tuple[Shape, ...] = SHAPES) -> FusedPlan | None:
        return choose_fused(8, rows, 7168, 2, True, FAR, area_packs_for(8, 2 << 20), algorithms, shapes)

    plain = choose(8, 43008, 2, True, FAR, area_packs_for(8, 2 << 20), 128)
    assert plain is not None
    assert plain.algorithm == "island"
    one, two, best = (cost_us(name, 8, 43008, 2, True, FAR) for name in ALL)
    assert best < two < best + NORM_US < one
    assert among(*ALL) == FusedPlan("island", 3, 4, 256), "blocks of 128 would do, and be more to meet"
    small = tuple(shape for shape in SHAPES if shape.threads == 128)
    assert among(*ALL, shapes=small) == FusedPlan("island", 3, 7, 128)
    others = tuple(shape for shape in SHAPES if shape.algorithm != "island")
    assert among(*ALL, shapes=others) == among(*GPU) == FusedPlan("two_shot", 3, 4, 256)
    assert among(*ONE_SHOT) is None


def test_where_there_are_no_islands_none_are_fused() -> None:
    for rows in range(1, 33):
        plan = chosen(8, rows, algorithms=ALL, shapes=tuple(shape for shape in SHAPES if shape.algorithm != "two_shot"))
        assert plan is None or plan.algorithm == "one_shot"


def test_limits_are_the_extension_modules() -> None:
    assert (MAX_BLOCKS, MAX_HIDDEN) == (_C.MAX_BLOCKS, _C.MAX_HIDDEN)


@pytest.mark.parametrize("hidden", [0, 7, 63, 7172, 16392, 32768])
def test_rows_that_are_no_whole_packs_or_too_long_are_not_fused(hidden: int) -> None:
    assert chosen(2, 1, hidden) is None


@pytest.mark.parametrize("hidden", [8, 64, 4096, 5120, 6144, 7168, 8192, 16384])
@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize("rows", [1, 3, 8, 32, 100, 1000])
def test_a_shape_holds_its_rows(hidden: int, dtype_bytes: int, rows: int) -> None:
    packs = hidden * dtype_bytes // 16
    shape = fused_shape(rows, packs, ROW_SHAPES)
    if shape is None:
        assert rows > 32, "few rows must be served"
        return
    teams, cluster, threads = shape
    lanes = cluster * threads
    most = max(held.teams for held in ROW_SHAPES if held.cluster == cluster and held.threads >= threads)
    assert teams <= min(rows, most)
    assert teams * cluster <= MAX_BLOCKS
    assert threads % 32 == 0
    items = -(-packs // lanes)
    assert items == 1 or teams == rows, "several rows and several packs a lane do not go together"
    assert shared_bytes(items * -(-rows // teams), packs, threads) <= MAX_SHARED


def test_few_packs_a_lane_and_small_blocks() -> None:
    assert fused_shape(3, 896, ROW_SHAPES) == (3, 7, 128)
    assert fused_shape(1, 512, ROW_SHAPES) == (1, 4, 128)
    assert fused_shape(1, 1024, ROW_SHAPES) == (1, 8, 128)
    assert fused_shape(1, 1, ROW_SHAPES) == (1, 1, 32)
    assert fused_shape(3, 896, (Shape(1, 608, 64),)) == (3, 1, 448)


def test_no_shape_no_fusion() -> None:
    assert fused_shape(1, 896, ()) is None
    assert fused_shape(1, 2048, (Shape(1, 608, 64),)) == (1, 1, 512)
    assert fused_shape(65, 896, (Shape(1, 608, 64),)) is None, "two packs of each of two rows"
    assert chosen(2, 1, shapes=()) is None


def test_two_ranks_are_always_fused() -> None:
    for rows in (1, 3, 8, 32):
        plan = chosen(2, rows)
        assert plan is not None
        assert plan.algorithm == "one_shot"


def test_eight_ranks_are_fused_until_one_shot_and_its_norm_cost_more() -> None:
    rows = 1
    while chosen(8, rows) is not None:
        rows += 1
    assert rows > 1
    nbytes = rows * 7168 * 2
    best = choose(8, nbytes, 2, False, SWITCH, area_packs_for(8, 2 << 20), 128)
    assert best is not None
    assert best.algorithm != "one_shot"
    assert cost_us("one_shot", 8, nbytes, 2, False, SWITCH) >= NORM_US + cost_us(
        best.algorithm, 8, nbytes, 2, False, SWITCH
    )


def test_an_algorithm_that_was_asked_for_is_kept() -> None:
    assert chosen(8, 4, algorithm="two_shot") is None
    fused = chosen(8, 4, algorithm="one_shot")
    assert fused is not None
    assert fused.algorithm == "one_shot"
    everything = chosen(8, 4, algorithms=ALL, shapes=None, algorithm="two_shot")
    assert everything == FusedPlan("two_shot", 1, 1, 1)


@pytest.mark.parametrize("world", [2, 3, 4, 5, 6, 7, 8])
def test_groups_go_by_two_shot_where_parts_are_whole_groups(world: int) -> None:
    for hidden in (4096, 5120, 7168):
        wide = tuple(Shape(8, 32 * world * n, 60, "two_shot") for n in range(1, 256 // (32 * world) + 1))
        plan = chosen(world, 4, hidden, GPU, (*ROW_SHAPES, *wide), algorithm="two_shot", group=128)
        part = part_packs(hidden // 8, world)
        fits = part <= 8 * max(shape.threads for shape in wide) // world
        assert (plan is not None) == (part % 16 == 0 and fits)
        assert chosen(world, 4, hidden, ALL, None, algorithm="two_shot", group=128) is not None, (
            "CPU ranks have whole rows"
        )
        anything = chosen(world, 4, hidden, GPU, (*ROW_SHAPES, *wide), group=128)
        assert anything is None or anything.algorithm == "one_shot" or part % 16 == 0


def test_a_tuned_table_decides_what_the_alternative_is() -> None:
    tuned = (Step(2, 1 << 20, "two_shot"),)
    everything = chosen(8, 1, algorithms=ALL, shapes=None, tuned=tuned)
    assert everything is not None
    assert everything.algorithm == "two_shot"


def test_what_all_ranks_can_hold() -> None:
    one, other = (Shape(1, 608, 64), Shape(2, 128, 9), Shape(4, 128, 0)), (Shape(2, 128, 7), Shape(1, 608, 65))
    assert set(common([one, other]) or ()) == {Shape(1, 608, 64), Shape(2, 128, 7)}
    assert common([None, None]) is None
