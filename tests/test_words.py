"""The wire gives one word a meaning of its own: 0x80000000, which is -0.0 in float32 and half of a pair elsewhere.

Nothing of that may show: every number arrives as itself, except that a zero result is always +0.0.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import DTYPES, SHORT, difference, expected_sum, from_bits, to_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

worlds = pytest.mark.parametrize("world", [2, 3, 5, 8])
LENGTHS = (1, 2, 3, 8, 9, 1021)
NEGATIVE_ZERO = {torch.float16: 0x8000, torch.bfloat16: 0x8000, torch.float32: 0x80000000}


def zero_patterns(elements: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """-0.0 everywhere; then every second element, so that both halves of a word are met; then at the ends alone."""
    minus = NEGATIVE_ZERO[dtype]
    yield from_bits([minus] * elements, dtype)
    yield from_bits([minus * (i % 2) for i in range(elements)], dtype)
    yield from_bits([minus * ((i + 1) % 2) for i in range(elements)], dtype)
    yield from_bits([minus * (i in (0, elements - 1)) for i in range(elements)], dtype)


def zeros_stay_positive(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 16, timeout=10.0) as comm:
        for elements, dtype in itertools.product(LENGTHS, DTYPES):
            for x in zero_patterns(elements, dtype):
                result = to_bits(comm.all_reduce(x.to(me.device)))
                assert not result.any(), f"{elements} x {dtype} of zeros gave {result[result != 0][:4]}"


def zeros_add_nothing(me: Rank) -> None:
    """One rank has numbers, the first or the last; all others have -0.0 in every arrangement."""
    with me.communicator(max_bytes=1 << 16, timeout=10.0) as comm:
        for giver, elements, dtype in itertools.product((0, me.world - 1), LENGTHS, DTYPES):
            numbers = (torch.arange(elements) % 199 - 99).to(dtype)
            for zeros in zero_patterns(elements, dtype):
                x = numbers if me.rank == giver else zeros
                problem = difference(comm.all_reduce(x.to(me.device)), to_bits(numbers + 0.0))
                assert problem is None, f"{elements} x {dtype} from rank {giver}: {problem}"


def cancelled(me: Rank) -> None:
    """Ranks 0 and 1 cancel each other, the others have -0.0."""
    with me.communicator(max_bytes=1 << 16, timeout=10.0) as comm:
        for dtype in DTYPES:
            numbers = torch.linspace(-9.0, 9.0, 1021).to(dtype)
            x = {0: numbers, 1: -numbers}.get(me.rank, -torch.zeros_like(numbers))
            assert not to_bits(comm.all_reduce(x.to(me.device))).any()


def subnormal(me: Rank, flush: bool) -> None:
    """Numbers below the smallest normal one add up, also where the caller has told its own thread to flush them."""
    with me.communicator(max_bytes=1 << 16, timeout=10.0) as comm:
        for dtype in DTYPES:
            patterns = [pattern | sign for pattern in (1, 2, 3, 5, 0x7F) for sign in (0, NEGATIVE_ZERO[dtype])]
            parts = [from_bits(patterns[shift:] + patterns[:shift], dtype) for shift in range(me.world)]
            expected = expected_sum(parts)
            x = parts[me.rank].to(me.device)
            torch.set_flush_denormal(flush)
            try:
                result = comm.all_reduce(x)
                flushes = torch.tensor([1e-310], dtype=torch.float64).mul(1.0).item() == 0.0
            finally:
                torch.set_flush_denormal(False)
            problem = difference(result, expected)
            assert problem is None, f"{dtype}: {problem}"
            assert flushes == flush, "the caller's own flush setting was not given back"


def special(me: Rank) -> list[list[int]]:
    with me.communicator(max_bytes=1 << 16, timeout=10.0) as comm:
        return [special_bits(me, comm, dtype) for dtype in DTYPES]


def special_bits(me: Rank, comm: Any, dtype: torch.dtype) -> list[int]:
    """NaN, infinities and overflow, each in one element; returns the result's bits."""
    top = torch.finfo(dtype).max
    columns = [
        (float("nan"), 1.0),
        (1.0, float("nan")),
        (float("inf"), 1.0),
        (float("-inf"), -5.0),
        (float("inf"), float("-inf")),
        (float("inf"), float("inf")),
        (top, top),
        (-top, -top),
        (top, 1.0),
        (float("nan"), float("nan")),
    ]
    x = torch.tensor([column[min(me.rank, 1)] if me.rank < 2 else 0.0 for column in columns], dtype=dtype)
    got = comm.all_reduce(x.to(me.device)).float().cpu()
    nan = [0, 1, 4, 9]
    assert got[nan].isnan().all(), got
    assert not got[[2, 3, 5, 6, 7, 8]].isnan().any(), got
    infinite = [float("inf"), float("-inf"), float("inf"), float("inf"), float("-inf")]
    assert got[[2, 3, 5, 6, 7]].tolist() == infinite, got
    assert got[8] == top, got
    return [int(bit) for bit in to_bits(got)]


def every_half_beside_every_zero(me: Rank, dtype: torch.dtype) -> None:
    """All 65,536 values of a half, in the low and in the high half of a word whose other half is a zero."""
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    zeros = torch.full_like(values, -(1 << 15))
    with me.communicator(max_bytes=1 << 18, timeout=10.0) as comm:
        for pair in ((values, zeros), (zeros, values), (values, torch.zeros_like(values))):
            x = torch.stack(pair, dim=1).reshape(-1).view(dtype)
            mine = x if me.rank == 1 else torch.zeros_like(x)
            parts = [x if rank == 1 else torch.zeros_like(x) for rank in range(me.world)]
            problem = difference(comm.all_reduce(mine.to(me.device)), expected_sum(parts))
            assert problem is None, problem


@worlds
def test_zeros_of_either_sign_give_positive_zero(world: int, device: str) -> None:
    run_ranks(world, zeros_stay_positive, device=device)


@worlds
def test_negative_zeros_add_nothing(world: int, device: str) -> None:
    run_ranks(world, zeros_add_nothing, device=device)


@pytest.mark.parametrize("world", [2, 5])
def test_a_sum_that_cancels_is_positive_zero(world: int, device: str) -> None:
    run_ranks(world, cancelled, device=device)


@pytest.mark.parametrize("flush", [False, True], ids=["kept", "flushed-by-caller"])
def test_subnormal_numbers_are_summed(flush: bool, device: str) -> None:
    if flush and not torch.set_flush_denormal(False):
        pytest.skip("this CPU has no flush mode for subnormal numbers")
    run_ranks(3, subnormal, flush, device=device)


@pytest.mark.parametrize("world", [2, 3])
def test_nan_and_infinity_pass(world: int, device: str) -> None:
    bits = run_ranks(world, special, device=device)
    assert all(other == bits[0] for other in bits[1:]), "ranks differ in a NaN's bits"


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=SHORT.get)
def test_every_half_word_survives_the_wire(dtype: torch.dtype, device: str) -> None:
    run_ranks(2, every_half_beside_every_zero, dtype, device=device)
