"""Batches of hidden-state extraction, and the memory of communication."""

from __future__ import annotations

import pytest

from pcie_allreduce.memory import told
from pcie_allreduce.memory.batch import Extraction
from pcie_allreduce.memory.buffers import Nccl, Ours
from pcie_allreduce.memory.facts import GB, CannotTell
from pcie_allreduce.memory.model import Model
from pcie_allreduce.plan import area_packs_for, memory_bytes

REPORTED = Extraction(samples=1000, sample_tokens=2048, batch=2000, headroom=4.0, model=Model())


def test_a_batch_of_2000_samples_is_two_million_tokens() -> None:
    assert REPORTED.in_batch * REPORTED.sample_tokens == 2_048_000
    assert REPORTED.gb(REPORTED.in_batch) == pytest.approx(2_048_000 * (4 + 12) * 7168 * 2 / GB)
    assert not REPORTED.fits
    assert any(
        "437.50 GB where 4.00 GB are free: it does not fit. --batch 9 does" in line
        for line in told.extraction(REPORTED)
    )
    assert any("Read as tokens, 2,000 would be 0.43 GB" in line for line in told.extraction(REPORTED))


def test_the_batch_that_fits_is_the_largest_one() -> None:
    assert REPORTED.gb(REPORTED.fitting) <= 4.0 < REPORTED.gb(REPORTED.fitting + 1)
    assert REPORTED.fitting_tokens // 2048 == REPORTED.fitting
    assert Extraction(1000, 2048, REPORTED.fitting, 4.0, Model()).fits


def test_few_samples_are_one_batch() -> None:
    few = Extraction(5, 2048, 2000, 4.0, Model())
    assert few.fits and few.fitting == 5
    assert "it fits" in told.extraction(few)[-1]


def test_one_sample_may_be_too_long() -> None:
    long = Extraction(1, 100_000, 1, 4.0, Model())
    assert long.fitting == 0
    assert f"Shorten samples to {long.fitting_tokens:,} tokens" in told.extraction(long)[-1]


def test_what_is_no_batch_is_refused() -> None:
    for work, sentence in (
        (Extraction(0, 1, 1, 1.0, Model()), "--samples 0"),
        (Extraction(1, 0, 1, 1.0, Model()), "--sample-tokens 0"),
        (Extraction(1, 1, 0, 1.0, Model()), "--batch 0"),
        (Extraction(1, 1, 1, 0.0, Model()), "--headroom 0: it must be above 0"),
    ):
        with pytest.raises(CannotTell, match=sentence):
            work.check()
    with pytest.raises(CannotTell, match="--kv-width 0: it must be within 1 and"):
        Model(kv_width=0).check()


def test_nccl_keeps_a_buffer_for_each_protocol_channel_and_connection() -> None:
    assert Nccl(channels=1, peers=1, groups=1).bytes == (4 << 20) + 524288 + 4915200
    assert Nccl(channels=3, peers=2, groups=2).bytes == 12 * Nccl(channels=1, peers=1, groups=1).bytes
    with pytest.raises(CannotTell, match="--nccl-channels 65: it must be within 1 and 64"):
        Nccl(channels=65).check()


def test_ours_is_what_the_plan_says() -> None:
    ours = Ours(8, 2 << 20)
    assert ours.bytes() == memory_bytes(area_packs_for(8, 2 << 20))
    assert ours.bytes("staged") == memory_bytes(area_packs_for(8, 2 << 20, transport="staged"), "staged")
    for wrong, sentence in ((Ours(0, 16), "--tp 0: it must be within 1"), (Ours(2, 8), "--max-bytes 8")):
        with pytest.raises(CannotTell, match=sentence):
            wrong.check()
    assert [world for world in range(1, 17) if Ours(world, 16).serves] == list(range(2, 9))
