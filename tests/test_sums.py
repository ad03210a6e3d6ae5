"""Sums are exact where the type allows it, correctly rounded elsewhere, and the same bits on every rank."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import (
    DTYPES,
    Guarded,
    difference,
    expected_sum,
    make_parts,
    rounding_excess,
    to_bits,
)

WORLDS = range(2, 9)
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 1021, 7168, 21509)  # in elements
MAX_BYTES = 1 << 17
worlds = pytest.mark.parametrize("world", WORLDS)


def sums_every_way(me: Rank, kind: str) -> str:
    """Each type and length out of place, into a given output and in place; a digest of all results.

    Every second length lies at odd addresses, with the output aligned differently from the input.
    """
    digest = hashlib.sha256()
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        for dtype in DTYPES:
            for seed, elements in enumerate(LENGTHS):
                for result in reduced_every_way(me, comm, make_parts(kind, me.world, elements, dtype, seed), seed % 2):
                    digest.update(to_bits(result).tobytes())
        assert comm.calls == 3 * len(LENGTHS) * len(DTYPES)
    return digest.hexdigest()


def reduced_every_way(me: Rank, comm: Any, parts: list[torch.Tensor], offset: int) -> list[torch.Tensor]:
    own, expected = parts[me.rank], expected_sum(parts)
    what = f"{own.numel()} x {own.dtype} at offset {offset}"
    given = Guarded(own.numel(), own.dtype, me.device, offset)
    out = Guarded(own.numel(), own.dtype, me.device, 2 * offset)
    x = given.holding(own)
    fresh = comm.all_reduce(x)
    assert comm.all_reduce(x, out=out.tensor) is out.tensor
    assert (fresh.dtype, fresh.shape, fresh.device) == (x.dtype, x.shape, x.device)
    assert (to_bits(x) == to_bits(own)).all(), f"{what}: the input was changed"
    assert comm.all_reduce(x, out=x) is x
    for way, result in {"fresh": fresh, "out": out.tensor, "in place": x}.items():
        problem = difference(result, expected)
        assert problem is None, f"{what}, {way}: {problem}"
    assert given.intact(), f"{what}: wrote outside its input when in place"
    assert out.intact(), f"{what}: wrote outside its output"
    return [fresh, out.tensor, x]


def far_from_exact(me: Rank) -> float:
    worst = 0.0
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        for dtype in DTYPES:
            for kind in ("normal", "mixed"):
                parts = make_parts(kind, me.world, 28675, dtype, seed=77)
                worst = max(worst, rounding_excess(comm.all_reduce(parts[me.rank].to(me.device)), parts))
    return worst


@worlds
def test_integers_are_exact(world: int, device: str) -> None:
    run_ranks(world, sums_every_way, "integers", device=device)


@worlds
def test_random_numbers_are_summed_in_rank_order_and_rounded_once(world: int, device: str) -> None:
    assert len(set(run_ranks(world, sums_every_way, "mixed", device=device))) == 1


@pytest.mark.parametrize("world", [2, 3, 8])
def test_all_bit_patterns_give_the_same_bits_on_every_rank(world: int, device: str) -> None:
    assert len(set(run_ranks(world, sums_every_way, "patterns", device=device))) == 1


@pytest.mark.parametrize("world", [2, 3, 8])
def test_error_against_float64_is_that_of_one_rounding(world: int, device: str) -> None:
    assert run_ranks(world, far_from_exact, device=device) == [0.0] * world


def any_shape(me: Rank) -> None:
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        for shape in ((), (1,), (3, 7168), (2, 3, 4, 5), (1, 1, 9)):
            x = torch.full(shape, float(me.rank + 1), dtype=torch.bfloat16, device=me.device)
            y = comm.all_reduce(x)
            assert y.shape == x.shape
            assert bool((y == sum(range(1, me.world + 1))).all())


def nothing(me: Rank) -> None:
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        before = comm.calls
        for shape in ((0,), (3, 0), (0, 7168)):
            x = torch.empty(shape, dtype=torch.float16, device=me.device)
            y = comm.all_reduce(x)
            assert y.shape == shape
            assert y.dtype == x.dtype
            assert comm.all_reduce(x, out=x) is x or x.numel() == 0
        assert comm.calls == before, "an empty call launches nothing"
        if me.rank == 0:  # and waits for nobody
            comm.all_reduce(torch.empty(0, device=me.device))
        one = comm.all_reduce(torch.ones(1, device=me.device))
        assert one.item() == me.world


def test_every_shape_is_served(device: str) -> None:
    run_ranks(2, any_shape, device=device)


def test_zero_elements_are_served(device: str) -> None:
    run_ranks(3, nothing, device=device)


def test_the_reference_itself_rounds_and_orders_as_stated() -> None:
    big, one = torch.tensor([2.0**24]), torch.tensor([1.0])
    assert difference(torch.tensor([2.0**24]), expected_sum([big, one, one])) is None  # rank order: each one is lost
    assert difference(torch.tensor([2.0**24 + 2]), expected_sum([one, one, big])) is None
    half = [torch.tensor([value], dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0)]  # per-add rounding gives 256
    assert difference(torch.tensor([258.0], dtype=torch.bfloat16), expected_sum(half)) is None
    assert "differ" in (difference(torch.tensor([-0.0]), expected_sum([big, -big])) or "")
    for dtype in DTYPES:  # against torch's own conversions
        parts = make_parts("mixed", 2, 4096, dtype, 5)
        total = (parts[0].float() + parts[1].float() + 0.0).to(dtype)
        assert difference(total, expected_sum(parts)) is None
        assert rounding_excess(total, parts) == 0.0
        assert rounding_excess(total * 1.02, parts) > 0.0
