"""Call after call: what one call leaves behind is the next one's memory, so order, size and lateness are the test.

Phases rotate by three and each call re-arms what its predecessor used; wrong ranges show only in certain orders of
sizes, wrong epochs only in certain counts.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run_ranks
from reference import DTYPES, difference, expected_sum, make_parts, to_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

BIG, SMALL = 16384, 8
ORDERS = {
    "falling": [BIG >> k for k in range(12)] * 2,
    "rising": [1 << k for k in range(15)] * 2,
    "big-small": [BIG, SMALL] * 8,
    "big-once-in-two-phases": [SMALL, BIG, SMALL, SMALL, BIG, BIG, SMALL, BIG],
    "bigger-three-later": [BIG, SMALL, SMALL, BIG + 8, SMALL, SMALL, BIG + 64, SMALL, 16, BIG + 128],
    "small-three-then-big": [SMALL, SMALL, SMALL, BIG, BIG, BIG] * 3,
    "big-middle": [64, BIG, 128, 2 * BIG, 64, BIG, 8, 2 * BIG, 1, 1, 1, 2 * BIG],
    "line-edges": [63, 64, 65, 57, 56, 55, 8, 9, 7, 1, 64, 128, 127, 129],
}
Step = tuple[int, torch.dtype]


def walk(me: Rank, steps: Sequence[Step], late: Sequence[int] = (), pause: float = 0.0) -> None:
    """Calls with integers; before call k of `late`, rank k mod world pauses. Results are checked call by call."""
    outs = {}
    with me.communicator(max_bytes=1 << 18) as comm:
        for call, (elements, dtype) in enumerate(steps):
            pattern = torch.arange(elements) % 13 + call % 7
            x = (pattern + me.rank).to(dtype).to(me.device)
            expected = (pattern * me.world + me.world * (me.world - 1) // 2).to(dtype)
            if call in late and me.rank == call % me.world:
                time.sleep(pause)
            out = outs.setdefault((elements, dtype), torch.empty_like(x)).fill_(float("nan"))
            comm.all_reduce(x, out=out)
            got = out.cpu()
            problem = difference(got, to_bits(expected))
            assert problem is None, f"call {call}: {elements} x {dtype}: {problem}"
        assert comm.calls == len(steps)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world", [2, 3, 8])
def test_sizes_in_awkward_orders(world: int, order: str, device: str) -> None:
    run_ranks(world, walk, [(elements, torch.bfloat16) for elements in ORDERS[order]], device=device)


@pytest.mark.parametrize("world", [2, 5])
def test_a_random_walk_over_sizes_and_types(world: int, device: str) -> None:
    choose = random.Random(20 + world)
    sizes = [choose.choice([1, 7, 8, 9, 500, 4095, 4096, 7168, choose.randrange(1, 30000)]) for _ in range(400)]
    run_ranks(world, walk, [(size, choose.choice(DTYPES)) for size in sizes], device=device)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 1001])
def test_odd_call_counts_and_a_new_communicator_after_each(count: int, device: str) -> None:
    steps = [(1021 + call % 2, torch.float16) for call in range(count)]
    run_ranks(3, walk_twice, steps, device=device)


def walk_twice(me: Rank, steps: Sequence[Step]) -> None:
    walk(me, steps)
    walk(me, steps)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_each_rank_late_in_turn(world: int, device: str) -> None:
    steps = [(21504 if call % 3 else 100, torch.bfloat16) for call in range(2 * world + 1)]
    run_ranks(world, walk, steps, range(2 * world), 0.15, device=device)


def many(me: Rank, count: int, elements: int) -> float:
    """`count` calls in place; the input of a call lies where the last one's result was."""
    with me.communicator(max_bytes=1 << 16) as comm:
        x = torch.empty(elements, dtype=torch.float32, device=me.device)
        begun = time.perf_counter()
        for call in range(count):
            x.fill_(float(call % 1000 + me.rank))
            comm.all_reduce(x, out=x)
            if call % 100 == 0 or call == count - 1:
                expected = me.world * (call % 1000) + me.world * (me.world - 1) // 2
                assert bool((x == expected).all()), f"call {call}: {x[:4]} is not {expected}"
        assert comm.calls == count
        return time.perf_counter() - begun


@pytest.mark.parametrize(("world", "count", "elements"), [(2, 10_000, 7168), (3, 10_000, 33), (8, 2000, 16)])
def test_ten_thousand_calls(world: int, count: int, elements: int, device: str) -> None:
    run_ranks(world, many, count, elements, device=device, timeout=120)


def every_call_is_checked(me: Rank, count: int) -> None:
    """Never skipping the check, with values that differ from element to element and from call to call."""
    with me.communicator(max_bytes=1 << 16) as comm:
        parts = make_parts("normal", me.world, 1500, torch.bfloat16, 4)
        x = parts[me.rank].to(me.device)
        expected = [expected_sum([part.roll(shift) for part in parts]) for shift in range(7)]
        for call in range(count):
            problem = difference(comm.all_reduce(x.roll(call % 7)), expected[call % 7])
            assert problem is None, f"call {call}: {problem}"


def test_every_one_of_two_thousand_results(device: str) -> None:
    run_ranks(3, every_call_is_checked, 2000, device=device)


def two_at_once(me: Rank) -> None:
    """Two communicators over the same ranks, used in turn, unevenly and nested; each keeps its own count."""
    with me.communicator(max_bytes=1 << 16) as one, me.communicator(max_bytes=1 << 17) as two:
        for step in range(60):
            for comm, elements in ((one, 7168), (two, 20000), (two, 8), (one, 3))[: 2 + step % 3]:
                x = torch.full((elements,), float(me.rank + step), dtype=torch.bfloat16, device=me.device)
                y = comm.all_reduce(x)
                assert bool((y == me.world * step + me.world * (me.world - 1) // 2).all()), step
        counts = one.calls, two.calls
        with me.communicator(max_bytes=1 << 16) as third:  # made and closed while the others live
            assert third.all_reduce(torch.ones(5, device=me.device)).sum().item() == 5 * me.world
        assert (one.calls, two.calls) == counts
        one.close()
        assert two.all_reduce(torch.ones(5, device=me.device)).sum().item() == 5 * me.world


def test_two_communicators_at_once(device: str) -> None:
    run_ranks(3, two_at_once, device=device)


def halves_and_whole(me: Rank) -> None:
    """Disjoint groups, then all ranks, then groups that cross them: a rank's number differs from group to group."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    row, column = rows[me.rank // 2], columns[me.rank % 2]
    with (
        me.communicator(group=row, max_bytes=1 << 16) as across,
        me.communicator(group=column, max_bytes=1 << 16) as down,
        me.communicator(max_bytes=1 << 16) as whole,
    ):
        assert (across.world_size, across.rank) == (2, me.rank % 2)
        assert (down.world_size, down.rank) == (2, dist.get_rank(column))
        for call in range(50):
            x = torch.full((1000,), float(1 << me.rank), dtype=torch.float16, device=me.device)
            assert across.all_reduce(x)[0].item() == (3 if me.rank < 2 else 12), call
            assert whole.all_reduce(x)[0].item() == 15, call
            assert down.all_reduce(x)[0].item() == (5 if me.rank % 2 == 0 else 10), call


def test_subgroups_beside_the_whole_group(device: str) -> None:
    run_ranks(4, halves_and_whole, device=device)
