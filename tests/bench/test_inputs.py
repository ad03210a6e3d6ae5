"""The reference itself: rounded once, as wide as float32 addition errs and no wider."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from pcie_allreduce.bench.inputs import (
    DTYPES,
    WHOLE,
    Recorded,
    describe,
    expect,
    integers,
    normals,
    round_once,
    shifted,
)
from pcie_allreduce.bench.settings import CannotRun

ALL_DTYPES = list(DTYPES.values())
ELEMENTS = 5000


def all_values(dtype: torch.dtype) -> list[Fraction]:
    """Every positive finite value of a 16-bit dtype between 2^-16 and 1024, in order."""
    bits = torch.arange(0x7FFF, dtype=torch.int32).to(torch.int16).view(dtype).double()
    return [Fraction(x) for x in bits[(bits > 2.0**-16) & (bits < 1024)].tolist()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_to_nearest_with_ties_to_even(dtype: torch.dtype) -> None:
    values = all_values(dtype)
    for low, high in list(pairwise(values))[::37]:
        middle, hair = float((low + high) / 2), float((high - low) / 2**40)
        x = torch.tensor([middle], dtype=torch.float64)
        below, tie, above = round_once(torch.cat([x - hair, x, x + hair]), dtype).tolist()
        assert (below, above) == (float(low), float(high))
        even = torch.tensor(float(low), dtype=dtype).view(torch.int16).item() % 2 == 0
        assert tie == float(low if even else high)


def test_torch_alone_would_round_twice() -> None:
    """Why round_once is needed at all: a hair above a tie, too small for float32."""
    x = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert x.to(torch.bfloat16).item() == 1.0
    assert round_once(x, torch.bfloat16).item() == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("world", [2, 3, 8])
def test_whole_numbers_are_exact_in_any_order_in_the_dtype_itself(dtype: torch.dtype, world: int) -> None:
    source = integers(dtype, world, seed=1)
    parts = [source(rank, ELEMENTS) for rank in range(world)]
    expected = expect(source, 0, world, ELEMENTS, exactly=True)
    assert torch.equal(expected.low, expected.high)
    for order in (parts, parts[::-1]):
        total = torch.zeros(ELEMENTS, dtype=dtype)
        for part in order:
            total += part
        assert torch.equal(total, expected.low)
    assert max(part.abs().max().item() for part in parts) * world <= WHOLE[dtype]
    assert len({part.view(torch.uint8).numpy().tobytes() for part in parts}) == world


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("world", [2, 3, 8])
def test_float32_sums_in_any_order_are_within(dtype: torch.dtype, world: int) -> None:
    source = normals(dtype, seed=1)
    parts = [source(rank, ELEMENTS) for rank in range(world)]
    expected = expect(source, 0, world, ELEMENTS, exactly=False)
    for order in (parts, parts[::-1], parts[1:] + parts[:1]):
        total = torch.zeros(ELEMENTS)
        for part in order:
            total += part.float()
        assert ((total.to(dtype) >= expected.low) & (total.to(dtype) <= expected.high)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nearly_every_element_has_one_right_value(dtype: torch.dtype) -> None:
    expected = expect(normals(dtype, seed=1), 0, 8, 100_000, exactly=False)
    assert (expected.low != expected.high).sum() < 100


def test_rank_and_size_and_seed_make_other_inputs_and_repetition_makes_the_same() -> None:
    source = normals(torch.float32, seed=1)
    assert torch.equal(source(0, 64), source(0, 64))
    for other in (source(1, 64), source(0, 65)[:64], normals(torch.float32, seed=2)(0, 64)):
        assert not torch.equal(source(0, 64), other)
    assert not torch.equal(shifted(source(0, 64), 1), source(0, 64))


def write_recording(path: Path, partials: torch.Tensor) -> str:
    np.savez_compressed(path, partials=partials.view(torch.int16).numpy().view(np.uint16), provenance="made up")
    return str(path)


def test_recorded_partials_are_joined_for_fewer_ranks(tmp_path: Path) -> None:
    partials = torch.randn(8, 3, 16).to(torch.bfloat16)
    recorded = Recorded(write_recording(tmp_path / "x.npz", partials))
    assert (recorded.recording.world, recorded.recording.nbytes) == (8, 3 * 16 * 2)
    for rank in range(8):
        assert torch.equal(recorded.source(8)(rank, 48), partials[rank].flatten())
    joined = partials.float().flatten(1)
    assert torch.equal(recorded.source(2)(1, 48), joined[4:].sum(0).to(torch.bfloat16))
    assert torch.equal(recorded.source(4)(0, 10), joined[:2].sum(0).to(torch.bfloat16)[:10])
    assert describe(recorded)["file"] == "x.npz"
    assert len(describe(recorded)["sha256"]) == 64


def test_the_recorded_file_of_this_repository_is_small_and_says_where_it_comes_from() -> None:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "inputs" / "minilm_o_proj_tp8.npz"
    assert path.stat().st_size <= 200_000
    recorded = Recorded(str(path))
    assert (recorded.recording.world, recorded.recording.dtype, recorded.recording.nbytes) == (8, "bf16", 21504)
    assert "all-MiniLM-L6-v2" in recorded.provenance
    parts = torch.stack([recorded.source(8)(rank, 21504 // 2) for rank in range(8)])
    assert parts.isfinite().all()
    assert len({part.view(torch.int16).numpy().tobytes() for part in parts}) == 8


def test_another_file_is_refused_with_its_name(tmp_path: Path) -> None:
    text, wrong = tmp_path / "a.npz", tmp_path / "b.npz"
    text.write_text("no archive")
    np.savez(wrong, partials=np.zeros((2, 3), np.float32), provenance="")
    single, none, empty = tmp_path / "c.npy", tmp_path / "d.npz", tmp_path / "e.npz"
    np.save(single, np.zeros((2, 3, 4), np.uint16))
    np.savez(none, partials=np.zeros((0, 3, 4), np.uint16), provenance="")
    empty.touch()
    for path, words in (
        (text, "not a recorded input"),
        (wrong, "float32"),
        (tmp_path / "missing.npz", "No such file"),
        (single, "one array, as of a .npy"),
        (none, r"uint16 \(0, 3, 4\)"),
        (empty, "not a recorded input"),
    ):
        with pytest.raises(CannotRun, match=words) as caught:
            Recorded(str(path))
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_a_damaged_file_is_refused_with_its_name(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_recording(path, torch.randn(8, 3, 160).to(torch.bfloat16))
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] if damage == "cut off" else whole[:100] + b"\xff" * half + whole[100 + half :])
    with pytest.raises(CannotRun, match="not a recorded input file") as caught:
        Recorded(str(path))
    assert str(path) in str(caught.value)
