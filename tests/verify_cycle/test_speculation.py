"""From passes to tokens per second, and reported figures against one another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pcie_allreduce.verify_cycle.example import worked
from pcie_allreduce.verify_cycle.report import FARTHEST, PassRow, Speculation, complaints, told
from pcie_allreduce.verify_cycle.speculation import Reported, acceptance_for, tokens_per_second

ROW = PassRow("nccl", "none", 8, 8, 3, 43008, 123, 32400.0, 32000.0, 33000.0, 8000.0, 20, 3, True, 0.01)


def test_a_pass_of_30_ms_that_yields_2_tokens_is_65_tokens_a_second() -> None:
    assert tokens_per_second(2.0, 30_000.0) == pytest.approx(2 * 0.97 / 0.030)
    assert acceptance_for(tokens_per_second(2.3, 30_000.0), 30_000.0) == pytest.approx(2.3)


@pytest.mark.parametrize("compute", [0.0, 4000.0, 12000.0])
def test_what_was_reported_is_consistent_with_itself(compute: float) -> None:
    seen = Reported()
    assert seen.tokens_per_second(200.0, compute) == pytest.approx(57.0)
    assert seen.tokens_per_second(seen.even_us(compute), compute) == pytest.approx(82.0)
    assert seen.pass_us(200.0, 0.0) == pytest.approx(24_400.0)


def test_the_example_follows_its_figures() -> None:
    text = worked()
    assert "122 all-reduces x 200 us = 24.4 ms" in text
    assert worked(replace(Reported(), plain=100.0)) != text
    shown = next(line for line in text.splitlines() if line.startswith("tokens/s at 200 us"))
    assert shown.split()[-3:] == ["57", "57", "57"]


def test_what_follows_from_a_row() -> None:
    alone = replace(ROW, rows=1, us_median=12_200.0)
    seen = told(ROW, [ROW, alone], Speculation(2.0, 0.97))
    assert seen["share"] == pytest.approx((32_400 - 8_000) / 32_400, abs=1e-4)
    assert seen["us_an_all_reduce"] == pytest.approx(24_400 / 123, abs=0.01)
    assert seen["tokens_per_second"] == pytest.approx(2 * 0.97 / 0.0324, abs=0.1)
    assert seen["pays_from"] == pytest.approx(32.4 / 12.2 / 0.97, abs=0.01)
    assert told(alone, [ROW, alone], Speculation(2.0, 0.97))["tokens_per_second"] == pytest.approx(82.0, abs=0.1)


def test_a_pass_yields_no_more_tokens_than_it_has_rows() -> None:
    assert told(ROW, [ROW], Speculation(5.0, 0.97))["acceptance"] == 3


def test_a_pass_without_communication_has_no_share() -> None:
    seen = told(replace(ROW, all_reduces=0, identical=None, distance=None), [], Speculation(2.0, 0.97))
    assert (seen["share"], seen["us_an_all_reduce"], seen["communication_us"]) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({}, 0),
        ({"distance": 2 * FARTHEST}, 1),
        ({"distance": float("inf")}, 1),
        ({"distance": float("nan")}, 1),
        ({"identical": False}, 0),  # NCCL may round as it likes
        ({"identical": False, "backend": "pcie_allreduce"}, 1),
        ({"identical": None, "distance": None}, 0),
    ],
)
def test_wrong_passes_are_told(change: dict[str, object], count: int) -> None:
    assert len(complaints([replace(ROW, **change)])) == count  # type: ignore[arg-type]
